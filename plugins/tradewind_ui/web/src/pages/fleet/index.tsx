import { Empty } from "../../components/Empty";

const Fleet = () => <Empty title="Nothing here yet" />;

export default Fleet;
