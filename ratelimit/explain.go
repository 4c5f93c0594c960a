package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/server"
	"gatehouse/ratelimit/internal/source"
)

// explain prints a descriptor's walk through the rules of a folder: exit 0 when a rule decides, 1
// when none does, 2 on bad usage or rules. It asks no daemon and counts nothing.
func explain(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("ratelimit explain", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: ratelimit explain -domain D -descriptors key=value,... DIR")
		flags.PrintDefaults()
	}
	domain := flags.String("domain", "", "rate limit `domain`")
	descriptor := flags.String("descriptors", "", "one descriptor, `key=value,key=value`")
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
	entries, err := server.ParseDescriptor(*descriptor)
	if err != nil {
		fmt.Fprintf(stderr, "ratelimit explain: -descriptors: %v\n", err)
		return exitUsage
	}
	files, skipped, unread := source.ReadDir(flags.Arg(0), false)
	if len(skipped) > 0 {
		fmt.Fprintf(stderr, "ratelimit explain: %s: %s\n", source.NotRead, strings.Join(skipped, " "))
	}
	if len(unread) > 0 {
		fmt.Fprintf(stderr, "ratelimit explain: %v\n", errors.Join(unread...))
		return exitUsage
	}
	rules, _, err := limits.Load(ctx, files, limits.Options{NearRatio: 0.8, MergeDomains: *merge, KeyPrefix: *prefix, EscapedKeys: *escaped})
	if err != nil {
		reportProblems(stderr, err)
		return exitUsage
	}
	x := rules.ExplainAt(*domain, entries, time.Now().Unix())
	if *format == "json" {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		e.Encode(x)
	} else {
		fmt.Fprint(stdout, x.Text())
	}
	if x.Decides == nil {
		return exitFailed
	}
	return exitOK
}
