package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/auth/internal/config"
	"gatehouse/shared/httpx"
)

// healthTimeout is how long a health check waits by default.
const healthTimeout = 2 * time.Second

// health runs the command "auth health". It reads only the settings of the listener.
func (p *program) health(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("health", flag.ContinueOnError)
	timeout := f.Duration("timeout", healthTimeout, "how long to wait for the answer")
	urls, err := p.parse(f, args, "[URL]", 0, 1)
	if err != nil {
		return err
	}
	if *timeout <= 0 {
		return p.misused(f, "-timeout %v: want more than 0", *timeout)
	}
	l, err := config.LoadListener(p.environ, p.file)
	if err != nil {
		return err
	}
	if len(urls) == 0 {
		if l.Port == 0 {
			return p.misused(f, "with PORT=0 the daemon listens on any free port: give the URL")
		}
		urls = []string{httpx.HealthURL(l.Host, strconv.Itoa(l.Port), "/readyz")}
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if err := httpx.Health(ctx, urls[0], l.Host); err != nil {
		if errors.Is(err, httpx.ErrNotLocal) {
			return p.misused(f, "%v", err)
		}
		return err
	}
	return nil
}

// wgetIgnored are flags of wget without a value, wgetValues flags with a value, such as -t N or --tries=N. All of them
// are ignored.
var (
	wgetIgnored = []string{"-q", "-nv", "--no-verbose", "--quiet"}
	wgetValues  = []string{"-t", "-T", "--tries", "--timeout"}
)

// wget runs if the program is called wget, by a link in the container image: health checks that were written for the
// image of supabase/auth call it.
func (p *program) wget(ctx context.Context) error {
	spider, urls := false, []string(nil)
	for args := p.args; len(args) > 0; {
		arg := args[0]
		args = args[1:]
		name, _, valued := strings.Cut(arg, "=")
		switch {
		case arg == "--spider":
			spider = true
		case slices.Contains(wgetIgnored, arg), valued && strings.HasPrefix(arg, "--") && slices.Contains(wgetValues, name):
		case (arg == "-t" || arg == "-T") && len(args) > 0:
			args = args[1:]
		case strings.HasPrefix(arg, "-"):
			return p.noWget()
		default:
			urls = append(urls, arg)
		}
	}
	if !spider || len(urls) != 1 {
		return p.noWget()
	}
	return p.health(ctx, urls)
}

func (p *program) noWget() error {
	fmt.Fprintln(p.stderr, "auth: this is no wget: only --spider URL")
	return errUsage
}
