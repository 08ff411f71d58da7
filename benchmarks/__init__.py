"""What Tradewind costs, each figure beside a peer or a bound that is measured in the same run."""
