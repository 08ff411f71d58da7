"""What Ray's provider asks Google Cloud, and how: clients, virtual machines, slices. Only where Ray is."""
