// Command ratelimit decides whether a request is within its limit: Envoy's v3 RateLimitService over
// gRPC, and the same over HTTP /json. docs/settings.md lists its settings.
package main

import (
	"os"

	"gatehouse/ratelimit/internal/cli"
)

func main() { os.Exit(cli.Main()) }
