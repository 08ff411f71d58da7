"""Programs that the Pythons of harnesses run; they import nothing of Tradewind, and no module of it imports them."""
