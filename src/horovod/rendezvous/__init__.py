"""How the processes of a job find each other: typed messages over channels whose peer is proven first."""
