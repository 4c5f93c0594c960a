// Command auth manages user accounts and issues signed tokens: sign-up, sign-in, verification, recovery
// and administration over HTTP, on PostgreSQL. docs/settings.md lists its settings.
//
// This package only starts: the sub-commands are in internal/cli, the wiring in internal/daemon, the settings in
// internal/config. What an account may do is in internal/account, what a request looks like in internal/httpapi.
package main

import (
	"os"

	"gatehouse/auth/internal/cli"
)

func main() { os.Exit(cli.Main()) }
