package cli

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"time"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/server"
)

// explain prints each descriptor's walk through the rules of a file or a folder, and what several of them are
// to each other as one request: exit 0 when an entry decides one, 1 when none does, 2 on bad usage or
// rules. It contacts no daemon and counts nothing.
func explain(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("ratelimit explain", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr,
			"usage: ratelimit explain -domain D -descriptors key=value,... [-descriptors ...] FILE|DIR")
		flags.PrintDefaults()
	}
	domain := flags.String("domain", "", "rate limit `domain`")
	var descriptors [][]rls.Entry
	flags.Func("descriptors", "one descriptor, `key=value,key=value`; repeat for more", func(text string) error {
		entries, err := server.ParseDescriptor(text)
		descriptors = append(descriptors, entries)
		return err
	})
	merge := flags.Bool("merge_domain_configs", false, "allow one domain in several files, as MERGE_DOMAIN_CONFIG does")
	prefix := flags.String("cache_key_prefix", "", "CACHE_KEY_PREFIX of the daemon")
	escaped := flags.Bool("escaped", false, "CACHE_KEY_FORMAT=escaped")
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
	options := limits.Options{
		Settings:    limits.Settings{MergeDomains: *merge, KeyPrefix: *prefix},
		EscapedKeys: *escaped,
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
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		e.Encode(shown)
	} else {
		fmt.Fprint(stdout, x.Text())
	}
	if !x.Decided() {
		return exitFailed
	}
	return exitOK
}
