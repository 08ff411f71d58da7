import createClient from "openapi-fetch";

import type { components, paths } from "./schema";

export type Schemas = components["schemas"];

/** A refusal of the server, in its words. */
export class ApiError extends Error {
  public constructor(
    public readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** The address below which this plugin answers, behind whatever path Airflow's own address has. */
export const pluginUrl = (path: string) => new URL(`tradewind/${path}`, document.baseURI).href;

export const api = createClient<paths>({ baseUrl: pluginUrl(""), credentials: "same-origin" });

type Answer<Data> = { readonly data?: Data; readonly error?: unknown; readonly response: Response };

const messageOf = (error: unknown): string | undefined => {
  const detail = typeof error === "object" && error !== null && "detail" in error ? error.detail : error;

  return typeof detail === "string" && detail !== "" ? detail : undefined;
};

/** Return what the server answered.
 * @throws ApiError It refused; the error has its sentence.
 */
export const answered = async <Data>(promise: Promise<Answer<Data>>): Promise<Data> => {
  const { data, error, response } = await promise;
  if (data === undefined) {
    throw new ApiError(response.status, messageOf(error) ?? `The server answers ${response.status}.`);
  }
  return data;
};
