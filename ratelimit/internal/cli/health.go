package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"gatehouse/ratelimit/internal/config"
	"gatehouse/shared/httpx"
)

const healthUsage = `usage: ratelimit health [-timeout 2s] [URL]
Asks the daemon on this host, at /healthcheck of HOST and PORT or at URL. Exit status 0: it answers 2xx.
example: ratelimit health -timeout 1s
`

// health is the command health, which requests /healthcheck of the daemon on this host. Of the settings it reads only
// those of the HTTP listener.
func health(ctx context.Context, args, environ []string, stderr io.Writer) int {
	flags := newFlags("health", healthUsage, stderr)
	timeout := flags.Duration("timeout", 2*time.Second, "how long to wait for the answer")
	if err := flags.Parse(args); err != nil {
		return flagExit(err)
	}
	misused := func(format string, a ...any) int {
		fmt.Fprintf(stderr, "ratelimit: health: "+format+"\n", a...)
		flags.Usage()
		return exitUsage
	}
	if flags.NArg() > 1 || *timeout <= 0 {
		return misused("want at most one URL and a -timeout above 0, got %q and %v", flags.Args(), *timeout)
	}
	l, err := config.LoadListener(environ)
	if err != nil {
		fmt.Fprintln(stderr, "ratelimit:", err)
		return exitFailed
	}
	address := flags.Arg(0)
	if address == "" {
		if l.Port == 0 {
			return misused("with PORT=0 the daemon listens on any free port: give the URL")
		}
		address = httpx.HealthURL(l.Host, strconv.Itoa(l.Port), "/healthcheck")
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	err = httpx.Health(ctx, address, l.Host)
	switch {
	case errors.Is(err, httpx.ErrNotLocal):
		return misused("%v", err)
	case err != nil:
		fmt.Fprintln(stderr, "ratelimit:", err)
		return exitFailed
	}
	return exitOK
}
