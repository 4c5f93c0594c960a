package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/server"
)

const explainUsage = "usage: ratelimit explain -domain D -descriptors key=value,... [-descriptors ...] FILE|DIR\n" +
	"example: ratelimit explain -domain shop -descriptors user=ann /etc/ratelimit/config\n"

// explain is the command explain. It prints how each descriptor of a request is matched against the rules of a file or
// folder and, for several descriptors, how their rules affect each other. It returns 0 if an entry decides a
// descriptor, 1 if none does, and 2 for bad usage or invalid rules. It contacts no daemon and counts nothing.
func explain(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := newFlags("explain", explainUsage, stderr)
	domain := flags.String("domain", "", "rate limit `domain`")
	var descriptors [][]rls.Entry
	flags.Func("descriptors", "one descriptor, `key=value,key=value`; repeat for more", func(text string) error {
		entries, err := server.ParseDescriptor(text)
		descriptors = append(descriptors, entries)
		return err
	})
	var options limits.Options
	mergeFlag(flags, &options.Settings)
	flags.StringVar(&options.KeyPrefix, "cache_key_prefix", "", "CACHE_KEY_PREFIX of the daemon")
	flags.BoolVar(&options.EscapedKeys, "escaped", false, "CACHE_KEY_FORMAT=escaped")
	format := flags.String("format", "text", "text or json")
	if err := flags.Parse(args); err != nil {
		return flagExit(err)
	}
	if flags.NArg() != 1 || *domain == "" || *format != "text" && *format != "json" {
		flags.Usage()
		return exitUsage
	}
	if len(descriptors) == 0 {
		descriptors = [][]rls.Entry{nil}
	}
	rules, ok := loadRules(ctx, "explain", flags.Arg(0), options, stderr)
	if !ok {
		return exitUsage
	}
	x := rules.ExplainRequest(*domain, descriptors, time.Now().Unix())
	var shown any = x
	if len(x.Descriptors) == 1 {
		shown = x.Descriptors[0]
	}
	if *format == "json" {
		if err := writeJSON(stdout, shown); err != nil {
			return failed("explain", err, stderr)
		}
	} else {
		fmt.Fprint(stdout, x.Text())
	}
	if !x.Decided() {
		return exitFailed
	}
	return exitOK
}
