import { Empty } from "../../components/Empty";

const Card = () => <Empty title="No fleet file is configured" />;

export default Card;
