// Command ratelimit decides whether requests are within their limits. It serves Envoy's v3 RateLimitService over gRPC,
// and the same over HTTP at /json. docs/settings.md lists its settings.
package main

import (
	"os"

	"gatehouse/ratelimit/internal/cli"
)

func main() { os.Exit(cli.Main()) }
