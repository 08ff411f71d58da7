import { Empty } from "../../components/Empty";

const Experiments = () => <Empty title="Nothing here yet" />;

export default Experiments;
