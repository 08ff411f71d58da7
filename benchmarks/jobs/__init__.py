"""Ray jobs from Airflow, by Tradewind's operator and its peers'. Environments without Tradewind import some modules."""
