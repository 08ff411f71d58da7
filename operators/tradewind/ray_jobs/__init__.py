"""Client of one cluster's Jobs API: submit once, follow, classify. Knows neither steps nor Airflow."""
