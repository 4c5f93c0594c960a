package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"gatehouse/ratelimit/internal/limits"
)

const diffUsage = "usage: ratelimit diff [-format text|json] [-escaped] OLD NEW\n" +
	"example: ratelimit diff /etc/ratelimit/config new.yaml\n"

// diff compares two sets of rules: exit 0 without a difference, 1 with some, 2 on bad usage or bad rules.
func diff(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := newFlags("diff", diffUsage, stderr)
	format := flags.String("format", "text", "text or json")
	escaped := flags.Bool("escaped", false, "CACHE_KEY_FORMAT=escaped")
	var options limits.Options
	mergeFlag(flags, &options.Settings)
	if err := flags.Parse(args); err != nil {
		return flagExit(err)
	}
	if flags.NArg() != 2 || *format != "text" && *format != "json" {
		flags.Usage()
		return exitUsage
	}
	var sets [2]*limits.Rules
	for i := range sets {
		var ok bool
		if sets[i], ok = loadRules(ctx, "diff", flags.Arg(i), options, stderr); !ok {
			return exitUsage
		}
	}
	d := compareRules(sets[0].View(), sets[1].View(), *escaped)
	if *format == "json" {
		writeJSON(stdout, d)
	} else {
		d.print(stdout)
	}
	if d.same() {
		return exitOK
	}
	return exitFailed
}

func (d *ruleDiff) print(w io.Writer) {
	for _, r := range d.Added {
		fmt.Fprintf(w, "added    %s (%s): %s\n", limits.OneLine(r.Key), placeOf(&r), limitOf(&r))
	}
	for _, r := range d.Removed {
		fmt.Fprintf(w, "removed  %s (%s): %s\n", limits.OneLine(r.Key), placeOf(&r), limitOf(&r))
	}
	for _, c := range d.Changed {
		fmt.Fprintf(w, "changed  %s (%s)", limits.OneLine(c.Rule), c.Place)
		if c.Counters != "" {
			fmt.Fprintf(w, ": counters %s", c.Counters)
		}
		fmt.Fprintln(w)
		for _, f := range c.Fields {
			fmt.Fprintf(w, "         %s: %s -> %s\n", f.Field, shownField(f.Before), shownField(f.After))
		}
	}
	fmt.Fprintf(w, "%d added, %d removed, %d changed, %d the same\n", len(d.Added), len(d.Removed), len(d.Changed),
		d.Same)
}

func placeOf(r *limits.RuleView) string { return fmt.Sprintf("%s:%d:%d", r.File, r.Line, r.Column) }

// limitOf returns a rule's limit in short form.
func limitOf(r *limits.RuleView) string {
	switch {
	case r.Whitelist:
		return "no limit"
	case r.Unlimited:
		return "unlimited"
	case r.UnitMultiplier > 1:
		return fmt.Sprintf("%d per %d %s", r.RequestsPerUnit, r.UnitMultiplier, r.Unit)
	}
	return fmt.Sprintf("%d per %s", r.RequestsPerUnit, r.Unit)
}

// shownField returns a field's value as JSON; "none" if it is not set.
func shownField(v any) string {
	if v == nil {
		return "none"
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}
