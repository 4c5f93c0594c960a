package cli

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"

	"gatehouse/ratelimit/internal/limits"
)

const replayUsage = `usage: ratelimit replay -rules NEW [-against OLD [-fail-above PERCENT]] [-format text|json] [-top 20]
       FILE|-
example: ratelimit replay -rules new.yaml -against /etc/ratelimit -fail-above 0.5 recording
`

// replay decides recorded requests by a set of rules, or by two sets to compare them, and prints what each rule would
// have passed and limited: exit 0, 1 when more requests than -fail-above allows are newly limited, 2 on bad usage, bad
// rules or a recording that cannot be read. It contacts no daemon.
func replay(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := newFlags("replay", replayUsage, stderr)
	newer := flags.String("rules", "", "`file` or folder of the rules to decide by")
	older := flags.String("against", "", "`file` or folder of rules to compare them with")
	top := flags.Int("top", 20,
		"`number` of descriptors to list that are limited most often; with -against, that are newly limited")
	format := flags.String("format", "text", "`format` of the report, text or json")
	failAbove := flags.Float64("fail-above", 100,
		"`percent` of the requests that may be newly limited with -against; more of them is exit status 1")
	var options limits.Options
	mergeFlag(flags, &options.Settings)
	if err := flags.Parse(args); err != nil {
		return flagExit(err)
	}
	judged := false
	flags.Visit(func(f *flag.Flag) { judged = judged || f.Name == "fail-above" })
	if flags.NArg() != 1 || *newer == "" || *top < 0 || *format != "text" && *format != "json" ||
		judged && (*older == "" || !(*failAbove >= 0 && *failAbove <= 100)) {
		flags.Usage()
		return exitUsage
	}
	bad := func(err error) int {
		fmt.Fprintf(stderr, "ratelimit replay: %v\n", err)
		return exitUsage
	}
	var sets []*limits.Rules // the newer set last
	for _, path := range slices.DeleteFunc([]string{*older, *newer}, func(path string) bool { return path == "" }) {
		rules, ok := loadRules(ctx, "replay", path, options, stderr)
		if !ok {
			return exitUsage
		}
		sets = append(sets, rules)
	}
	in := io.Reader(os.Stdin)
	if flags.Arg(0) != "-" {
		file, err := os.Open(flags.Arg(0))
		if err != nil {
			return bad(err)
		}
		defer file.Close()
		in = file
	}
	r := newReplayer(sets)
	if err := r.run(ctx, in); err != nil {
		return bad(fmt.Errorf("the recording cannot be read: %w", err))
	}
	if *format == "json" {
		r.writeJSON(stdout, *top)
	} else {
		r.write(stdout, *top)
	}
	if share := 100 * float64(r.newly) / float64(max(r.requests, 1)); share > *failAbove {
		fmt.Fprintf(stderr, "ratelimit replay: %d of %d requests (%.2f %%) are newly limited, more than %g %%\n",
			r.newly, r.requests, share, *failAbove)
		return exitFailed
	}
	return exitOK
}
