"""What tests share: fakes, servers, whole commands; `stack` for tests on a cluster."""
