import { Box } from "@chakra-ui/react";

/** Airflow orders the parts of its home page: the fifth shows its health. */
export const PLACE = 5;
const KEY = "tradewind_fleet_card";
const FIRST_PX = 160;

/** Keeps the height of the card, 0 if there is none for this user. */
export const keepHeight = (px: number) => {
  localStorage.setItem(KEY, String(px));
};

/** The place of the card before the clusters have answered, as high as the card was last, so that nothing moves then. */
export const CardSpace = () => {
  const px = Number(localStorage.getItem(KEY) ?? FIRST_PX);
  return px > 0 ? <Box aria-hidden="true" borderWidth="1px" h={`${px}px`} order={PLACE} rounded="md" /> : null;
};
