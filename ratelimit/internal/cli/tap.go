package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

const tapUsage = `usage: ratelimit tap [-debug_url U] [-domain D] [-key K] [-code C] [-unmatched] [-rate N] [-sample SHARE]
       [-seconds N]
example: ratelimit tap -domain shop -code OVER_LIMIT -seconds 10
`

// tap is the command tap, which prints the decisions of a running daemon as they are made, as lines of JSON. It returns
// 0 when the requested time is over, and when the command or the daemon is stopped; 1 if the daemon does not answer or
// the stream breaks; 2 for bad usage.
func tap(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	flags := newFlags("tap", tapUsage, stderr)
	debugURL := flags.String("debug_url", defaultDebugURL,
		"`URL` of the daemon's debug port; the token is DEBUG_TOKEN's")
	domain := flags.String("domain", "", "only requests for this `domain`")
	key := flags.String("key", "", "only requests with an entry of this `key`")
	code := flags.String("code", "", "only requests with this `code`, OK or OVER_LIMIT")
	unmatched := flags.Bool("unmatched", false, "only requests with a descriptor that no rule matches")
	rate := flags.Int("rate", 100, "decisions a second, at most; up to 10000")
	sample := flags.Float64("sample", 1, "`share` of the requests")
	seconds := flags.Int("seconds", 60, "how long; up to 3600")
	if err := flags.Parse(args); err != nil {
		return flagExit(err)
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "ratelimit tap: %q is no flag\n", flags.Arg(0))
		return exitUsage
	}
	port, err := openDebugPort(*debugURL, environ)
	if err != nil {
		fmt.Fprintf(stderr, "ratelimit tap: %v\n", err)
		return exitUsage
	}
	q := url.Values{"rate": {strconv.Itoa(*rate)}, "seconds": {strconv.Itoa(*seconds)},
		"sample": {strconv.FormatFloat(*sample, 'g', -1, 64)}, "unmatched": {strconv.FormatBool(*unmatched)},
		"domain": {*domain}, "key": {*key}, "code": {*code}}
	resp, err := port.ask(ctx, http.MethodGet, "/tap", q)
	if err != nil {
		return failed("tap", err, stderr)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(stdout, resp.Body); err != nil && ctx.Err() == nil {
		return failed("tap", fmt.Errorf("the stream broke off: %w", err), stderr)
	}
	return exitOK
}
