import { Empty } from "../../components/Empty";

const Data = () => <Empty title="Nothing here yet" />;

export default Data;
