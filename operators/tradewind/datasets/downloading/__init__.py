"""Files from elsewhere: what there is, reading over connections that break, and copies that are whole or not there."""
