import { Empty } from "../../components/Empty";

const Plan = () => <Empty title="Nothing here yet" />;

export default Plan;
