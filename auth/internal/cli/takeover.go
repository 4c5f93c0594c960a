package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"gatehouse/auth/internal/config"
	"gatehouse/auth/internal/daemon"
	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/takeover"
	"gatehouse/shared/settings"
)

// takeoverMemory is the memory limit that the command sets for Go's garbage collector. Batches hold up to 16 MiB of
// text.
const takeoverMemory = 96 << 20

// takeover runs the command "auth takeover".
func (p *program) takeover(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("takeover", flag.ContinueOnError)
	from := f.String("from", "", "schema of the tables there")
	ahead := f.Bool("ahead", false, "copy now, close later; may be repeated")
	dry := f.Bool("dry-run", false, "write nothing")
	abandon := f.Bool("abandon", false, "empty the tables here and forget the open takeover")
	suggest := f.Bool("suggest", false, "print once more what the application needs")
	leaveOut := f.String("leave-out", "", "accepted losses: "+strings.Join(takeover.Kinds, ", "))
	asJSON := f.Bool("json", false, "the report as one JSON object")
	yes := f.Bool("yes", false, "-abandon without a question")
	if _, err := p.parse(f, args,
		"[-from SCHEMA] [-ahead | -dry-run | -abandon | -suggest] [-leave-out KIND,...] [-json] [-yes]", 0, 0); err != nil {
		return err
	}
	o := takeover.Options{JSON: *asJSON, Out: p.stdout, Log: p.stderr, Terminal: terminal(p.stderr)}
	modes := 0
	for mode, on := range map[takeover.Mode]bool{takeover.Ahead: *ahead, takeover.DryRun: *dry,
		takeover.Abandon: *abandon, takeover.Suggest: *suggest} {
		if on {
			o.Mode, modes = mode, modes+1
		}
	}
	if modes > 1 {
		return p.misused(f, "-ahead, -dry-run, -abandon and -suggest exclude each other")
	}
	o.LeaveOut = settings.List(*leaveOut)
	for _, kind := range o.LeaveOut {
		if !slices.Contains(takeover.Kinds, kind) {
			return p.misused(f, "-leave-out %q: want %s", kind, strings.Join(takeover.Kinds, ", "))
		}
	}
	c, l, r, err := p.read()
	if err != nil {
		for _, w := range r.Brief() {
			fmt.Fprintln(p.stderr, "auth: warning:", w)
		}
		return err
	}
	if o.Settings, err = c.TakeoverSettings(l, r); err != nil {
		return err
	}
	if *from == "" {
		*from = config.FormerSchema(p.environ, p.file)
	}
	if *abandon && !*yes {
		if err := p.confirm("takeover: -abandon", "This deletes all users here. The tables there stay as they are.",
			"abandon"); err != nil {
			return err
		}
	}
	debug.SetMemoryLimit(takeoverMemory)
	debug.SetGCPercent(50)
	return p.runTakeover(ctx, o, &c, *from)
}

// runTakeover opens both databases and runs the takeover.
func (p *program) runTakeover(ctx context.Context, o takeover.Options, c *config.Config, schema string) error {
	log := daemon.NewLogger(p.stderr, config.Log{Level: "warn", Format: "text"}).Logger
	here := c.StoreOptions(log)
	here.Name = former.ApplicationName
	here.MaxConns = 4
	var err error
	if o.DB, err = daemon.OpenStore(ctx, here, 0); err != nil {
		return err
	}
	defer o.DB.Close()
	source := c.Takeover.SourceURL
	if o.Mode != takeover.Abandon || source == "" { // Abandon must work even if the source's database no longer exists
		if o.Source, err = former.OpenSource(ctx, cmp.Or(source, c.DB.URL), schema); err != nil {
			return fmt.Errorf("AUTH_TAKEOVER_SOURCE_URL: %w", err)
		}
		defer o.Source.Close()
	}
	switch err := takeover.Run(ctx, o); {
	case errors.Is(err, takeover.ErrRefused):
		return errSaid
	case errors.Is(err, takeover.ErrStopped):
		fmt.Fprintln(p.stderr, err)
		return errSaid
	case err != nil:
		return fmt.Errorf("takeover: %w", err)
	}
	return nil
}

// confirm asks the user to type a word on the terminal. If standard input is not a terminal, it requires the flag -yes.
func (p *program) confirm(what, warning, word string) error {
	in, ok := p.stdin.(*os.File)
	if !ok || !terminal(in) {
		return fmt.Errorf("%s: without a terminal it needs -yes. %s", what, warning)
	}
	fmt.Fprintf(p.stderr, "%s Type %s to go on: ", warning, word)
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if strings.TrimSpace(line) != word {
		return fmt.Errorf("%s: nothing was changed", what)
	}
	return nil
}

// terminal reports whether f is a terminal.
func terminal(f any) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	null, err2 := os.Stat(os.DevNull)
	return err == nil && err2 == nil && info.Mode()&os.ModeCharDevice != 0 && !os.SameFile(info, null)
}
