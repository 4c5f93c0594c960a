package cli

import (
	"context"
	"flag"
	"fmt"
)

// redirect runs the command "auth redirect".
func (p *program) redirect(_ context.Context, args []string) error {
	if len(args) == 0 || args[0] != "test" {
		return p.misusedGroup("redirect")
	}
	urls, err := p.parse(flag.NewFlagSet("redirect test", flag.ContinueOnError), args[1:], "URL...", 1, -1)
	if err != nil {
		return err
	}
	_, l, _, err := p.load()
	if err != nil {
		return err
	}
	for _, doubt := range l.API.Redirects.Lint() {
		fmt.Fprintln(p.stderr, "warn ", doubt)
	}
	refused := 0
	for _, u := range urls {
		allowed, why := l.API.Redirects.Explain(u)
		verdict := "allowed"
		if !allowed {
			verdict, refused = "refused", refused+1
		}
		fmt.Fprintf(p.stdout, "%s  %s  %s\n", verdict, u, why)
	}
	if refused > 0 {
		return fmt.Errorf("%d of %d are refused; a request with such a redirect_to leads to %s", refused, len(urls),
			l.Accounts.SiteURL)
	}
	return nil
}
