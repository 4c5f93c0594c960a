// Package cli is the command line of the program ratelimit: signals, arguments, exit statuses, and a file for each
// sub-command.
package cli

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"gatehouse/ratelimit/internal/daemon"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/shared/buildinfo"
	"gatehouse/shared/logging"
)

// Exit statuses. Bad usage has a status of its own, so that scripts can distinguish it from the answer no.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// Main runs the program with the arguments and the environment of this process, and returns its exit status.
func Main() int { return Program{}.Main() }

// Program has what the program needs in addition to arguments and environment. The zero value is the program as package
// main runs it.
type Program struct {
	// Resolver looks up the names of memcached's nodes (MCACHE_SRV); nil means the resolver of the host.
	Resolver *net.Resolver
}

// Main runs p, with the arguments and the environment of this process, until the command is done or a signal ends it.
// It returns the exit status.
func (p Program) Main() int {
	// The context's stop function is never called: supervisors repeat signals, and a second signal must not end the
	// process during a clean shutdown.
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	return p.run(ctx, os.Args, os.Environ(), os.Stdout, os.Stderr)
}

const usage = `usage: ratelimit [serve]         run the daemon; settings come from the environment
       ratelimit client ...      ask a running daemon once (-h for flags)
       ratelimit check FILE|-|DIR   check configuration files
       ratelimit schema          print the JSON Schema of configuration files, for editors
       ratelimit diff OLD NEW    compare two sets of configuration files (-h for flags)
       ratelimit explain ...     show which rule decides a descriptor (-h for flags)
       ratelimit replay ...      decide recorded requests by other rules (-h for flags)
       ratelimit counters ...    show or reset the counters of a descriptor in a running daemon (-h for flags)
       ratelimit tap ...         print decisions of a running daemon as they are made (-h for flags)
       ratelimit health [URL]    ask the daemon on this host whether it is healthy (-h for flags)
       ratelimit version
`

// run runs the whole program. It returns the exit status when ctx has ended or the command is done.
func (p Program) run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	command, rest, replaced := "serve", args[1:], false
	if len(rest) > 0 {
		command, rest = rest[0], rest[1:]
	}
	switch filepath.Base(args[0]) { // envoyproxy/ratelimit's three programs can be links to this one
	case "ratelimit_client":
		command, rest, replaced = "client", args[1:], true
	case "ratelimit_config_check":
		command, rest, replaced = "check", args[1:], true
	}
	switch command {
	case "serve":
		if isHelp(rest) {
			fmt.Fprint(stdout, usage)
			return exitOK
		}
		if len(rest) > 0 {
			fmt.Fprintf(stderr, "ratelimit: serve takes no arguments, only settings from the environment; got %q\n%s",
				rest, usage)
			return exitUsage
		}
		if err := daemon.Serve(ctx, daemon.Options{Environ: environ, Stdout: stdout, Stderr: stderr,
			Resolver: p.Resolver}); err != nil {
			daemon.Report(stderr, environ, logging.LevelFatal, err.Error())
			return exitFailed
		}
		return exitOK
	case "client":
		return client(ctx, rest, replaced, stdout, stderr)
	case "check":
		return check(ctx, checkCall{rest, environ, replaced}, stdout, stderr)
	case "diff":
		return diff(ctx, rest, stdout, stderr)
	case "schema":
		return schema(rest, stdout, stderr)
	case "explain":
		return explain(ctx, rest, stdout, stderr)
	case "replay":
		return replay(ctx, rest, stdout, stderr)
	case "counters":
		return counters(ctx, rest, environ, stdout, stderr)
	case "tap":
		return tap(ctx, rest, environ, stdout, stderr)
	case "health":
		return health(ctx, rest, environ, stderr)
	case "version", "-version", "--version":
		fmt.Fprintln(stdout, buildinfo.Version("ratelimit"))
		return exitOK
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
		return exitOK
	}
	fmt.Fprintf(stderr, "ratelimit: there is no command %q\n%s", command, usage)
	return exitUsage
}

// newFlags returns the set of flags for a command. Its usage message, which goes to stderr, is the text usage with the
// flags inserted before the last line, which is an example.
func newFlags(command, usage string, stderr io.Writer) *flag.FlagSet {
	flags := flag.NewFlagSet("ratelimit "+command, flag.ContinueOnError)
	flags.SetOutput(stderr)
	form, example, _ := strings.Cut(usage, "example: ")
	flags.Usage = func() {
		fmt.Fprint(stderr, form)
		flags.PrintDefaults()
		fmt.Fprint(stderr, "example: ", example)
	}
	return flags
}

// mergeFlag defines -merge_domain_configs, which all commands that load rules have.
func mergeFlag(flags *flag.FlagSet, s *limits.Settings) {
	flags.BoolVar(&s.MergeDomains, "merge_domain_configs", false,
		"allow one domain in several files, as MERGE_DOMAIN_CONFIG does")
}

// isHelp reports whether the arguments only request the usage message of a command.
func isHelp(args []string) bool {
	return len(args) == 1 && (args[0] == "-h" || args[0] == "-help" || args[0] == "--help")
}

// writeJSON writes a report as indented JSON, for programs.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
