import { Empty } from "../../components/Empty";

const Step = () => <Empty title="Nothing here yet" />;

export default Step;
