package cli

import (
	"context"
	"fmt"
	"io"
	"os"

	"gatehouse/ratelimit/internal/limits"
)

const replayUsage = "usage: ratelimit replay -rules NEW [-against OLD] [-top 20] FILE|-\n"

// replay decides recorded requests by a set of rules, or by two to compare them, and prints what each rule would have
// passed and limited: exit 0, 2 on bad usage, bad rules or a recording that cannot be read. It contacts no daemon.
func replay(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := newFlags("replay", replayUsage, stderr)
	newer := flags.String("rules", "", "`file` or folder of the rules to decide by")
	older := flags.String("against", "", "`file` or folder of rules to compare them with")
	top := flags.Int("top", 20,
		"`number` of descriptors to list that are limited most often; with -against, that are newly limited")
	var options limits.Options
	mergeFlag(flags, &options.Settings)
	if err := flags.Parse(args); err != nil {
		return flagExit(err)
	}
	if flags.NArg() != 1 || *newer == "" || *top < 0 {
		flags.Usage()
		return exitUsage
	}
	bad := func(err error) int {
		fmt.Fprintf(stderr, "ratelimit replay: %v\n", err)
		return exitUsage
	}
	var sets []*limits.Rules // the newer one last
	for _, path := range []string{*older, *newer} {
		if path == "" {
			continue
		}
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
	r.write(stdout, *top)
	return exitOK
}
