package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"gatehouse/ratelimit/internal/server"
	"gatehouse/ratelimit/internal/service"
)

const countersUsage = `usage: ratelimit counters get   [-debug_url U] -domain D -descriptors key=value,...
       ratelimit counters reset [-debug_url U] -domain D -descriptors key=value,...
example: ratelimit counters get -domain shop -descriptors user=ann
`

// counters is the command counters, which shows or resets the counters that a running daemon has for one descriptor. It
// returns 0 if there are counters, 1 if no counter decides the descriptor or the daemon does not return any, and 2 for
// bad usage.
func counters(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	methods := map[string]string{"get": http.MethodGet, "reset": http.MethodDelete}
	if len(args) == 0 || methods[args[0]] == "" {
		fmt.Fprint(stderr, countersUsage)
		if len(args) > 0 && (args[0] == "-h" || args[0] == "-help" || args[0] == "--help") {
			return exitOK
		}
		return exitUsage
	}
	command := "counters " + args[0]
	flags := newFlags(command, countersUsage, stderr)
	debugURL := flags.String("debug_url", defaultDebugURL,
		"`URL` of the daemon's debug port; the token is DEBUG_TOKEN's")
	domain := flags.String("domain", "", "rate limit `domain`")
	descriptor := flags.String("descriptors", "", "the descriptor, `key=value,key=value`")
	asJSON := flags.String("descriptor_json", "", "the same as `JSON`, for texts with a comma or an equals sign")
	limit := flags.String("limit", "", "a limit that the requests bring along, such as `10/minute`")
	format := flags.String("format", "text", "text or json")
	if err := flags.Parse(args[1:]); err != nil {
		return flagExit(err)
	}
	if flags.NArg() > 0 || *domain == "" || (*descriptor == "") == (*asJSON == "") || *format != "text" &&
		*format != "json" {
		flags.Usage()
		return exitUsage
	}
	if _, err := server.ParseDescriptor(*descriptor); err != nil {
		fmt.Fprintf(stderr, "ratelimit %s: -descriptors: %v\n", command, err)
		return exitUsage
	}
	port, err := openDebugPort(*debugURL, environ)
	if err == nil && port.token == "" && methods[args[0]] == http.MethodDelete {
		err = fmt.Errorf("DEBUG_TOKEN, or DEBUG_TOKEN_FILE, is not set: a reset needs the daemon's")
	}
	if err != nil {
		fmt.Fprintf(stderr, "ratelimit %s: %v\n", command, err)
		return exitUsage
	}
	q := url.Values{"domain": {*domain}, "descriptor": {*descriptor}, "descriptor_json": {*asJSON}, "limit": {*limit}}
	resp, err := port.ask(ctx, methods[args[0]], "/counters", q)
	if err != nil {
		return failed(command, err, stderr)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	var report service.CounterReport
	if err == nil {
		err = json.Unmarshal(body, &report)
	}
	if err != nil {
		return failed(command, fmt.Errorf("the answer cannot be read: %w", err), stderr)
	}
	if *format == "json" {
		if _, err := stdout.Write(body); err != nil {
			return failed(command, err, stderr)
		}
	} else {
		writeCounters(stdout, &report)
	}
	return exitOK
}

func writeCounters(w io.Writer, report *service.CounterReport) {
	for i := range report.Limits {
		l := &report.Limits[i]
		name := "limit of its own"
		if l.Rule != "" {
			name = fmt.Sprintf("%s (%s)", server.Visible(l.Rule), l.File)
		}
		burst := ""
		if l.Burst > 0 {
			burst = fmt.Sprintf("burst %d", l.Burst)
		}
		fmt.Fprintf(w, "%s: limit %s: %d used, %d left, reset in %d s, key %s\n", name, l.Text(l.Limit, burst), l.Used,
			l.Remaining, l.Reset, server.Visible(l.Key))
	}
	switch {
	case report.Deleted == nil:
	case *report.Deleted > 0:
		fmt.Fprintf(w, "%d deleted; above is how they stood\n", *report.Deleted)
	default:
		fmt.Fprintln(w, "nothing deleted: no request has been counted there")
	}
	if report.Note != "" {
		fmt.Fprintf(w, "note: %s\n", report.Note)
	}
}
