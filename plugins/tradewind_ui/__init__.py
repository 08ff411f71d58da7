"""The Airflow UI plugin of Tradewind."""
