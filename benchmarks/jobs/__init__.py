"""Ray jobs from Airflow, by our operator and by its peers'. Some of it is read in environments without Tradewind."""
