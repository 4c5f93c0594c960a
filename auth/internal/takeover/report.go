package takeover

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/store"
)

// result has the data of a run that its report contains.
type result struct {
	location     store.Location
	sameDatabase bool
	tables       map[string]*tally
	links        tally
	versions     [3]int64
	pending      tally
	passwords    tally
	// since says from which transaction and time on a later run has read changes; nil in the first run.
	since                       *former.Since
	sampleUsers, sampleSessions int
	// rewritten is how many rows differed when the sides were compared, and were written again.
	rewritten int
	closed    time.Time
	// outlook is the text with which a dry run predicts how long the last run will take.
	outlook string
}

// state returns the state of the takeover after the run, as the report names it.
func (r *run) state() string {
	switch {
	case r.Mode == DryRun:
		return "dry run"
	case !r.result.closed.IsZero():
		return "closed"
	}
	return "open"
}

// report counts what only the report needs, and writes the report.
func (r *run) report(ctx context.Context) error {
	if err := r.countPending(ctx); err != nil {
		return err
	}
	place := r.result.location
	advice, err := r.advise(ctx)
	if err != nil {
		return err
	}
	r.progress.clear()
	if r.JSON {
		return r.reportJSON(advice)
	}
	w := r.Out
	if r.Mode == DryRun {
		fmt.Fprintln(w, "dry run: nothing was written")
	}
	fmt.Fprintf(w, "takeover from schema %s (version %d) of %s into schema %s\n", r.Source.Schema,
		r.Source.Catalog.Version, r.Source.Host(), place.Schema)
	r.reportTables()
	r.reportEnd()
	r.printAll("warning: ", r.warnings)
	if r.result.closed.IsZero() {
		if len(advice.Objects) > 0 {
			fmt.Fprintln(w, "of the application, for the run that closes:")
			r.printAll("  ", advice.Objects)
		}
		return nil
	}
	r.reportAdvice(advice)
	return nil
}

// advise returns the objects of the application that depend on the source's tables, and suggestions for changing them.
// It reads them from the system catalogue.
func (r *run) advise(ctx context.Context) (former.Advice, error) {
	place := r.result.location
	return r.Source.Advise(ctx, former.Target{Schema: place.Schema, Namespace: r.Settings.Namespace,
		Role: former.Name(place.Role), Same: r.result.sameDatabase})
}

// reportAdvice prints the changes that the application needs. If the mirror is installed ("auth mirror install"), it
// needs none.
func (r *run) reportAdvice(advice former.Advice) {
	w := r.Out
	if r.result.sameDatabase {
		fmt.Fprintln(w, "-- suggestions: auth mirror install")
		r.printAll("-- goes on unchanged: ", advice.Objects)
		fmt.Fprintln(w, "-- without a mirror:")
	} else {
		fmt.Fprintln(w, "-- suggestions:")
	}
	r.printAll("", append(advice.Suggestions, r.Source.Retire()...))
	fmt.Fprintln(w, "-- way back:")
	r.printAll("", r.wayBack(advice))
}

// printAll prints lines, each after the text begin.
func (r *run) printAll(begin string, lines []string) {
	for _, line := range lines {
		fmt.Fprintln(r.Out, begin+line)
	}
}

// suggest prints the end of the report again, for a takeover that is closed.
func (r *run) suggest(ctx context.Context) error {
	f := &findings{r: r}
	if err := r.Source.Inspect(ctx); err != nil {
		return fmt.Errorf("the source: %w", hideValues(err))
	}
	list, err := r.DB.Moves(ctx, store.MoveTakeover)
	if err != nil {
		return err
	}
	if len(list) == 0 || !list[0].Closed {
		f.refuse("no takeover is closed: the run that closes it prints the suggestions")
		return f.told()
	}
	c := &r.Source.Catalog
	if !c.Holds() {
		f.refuse("schema %q does not hold the tables of the replaced service", r.Source.Schema)
		return f.told()
	}
	place, err := r.DB.Location(ctx)
	if err != nil {
		return err
	}
	r.result.location, r.result.closed = place, list[0].ClosedAt
	r.result.sameDatabase = place.Cluster == c.Cluster && place.Database == c.DatabaseID
	advice, err := r.advise(ctx)
	if err == nil {
		r.reportAdvice(advice)
	}
	return err
}

// wayBack returns the SQL statements and instructions with which the former service can be used again.
func (r *run) wayBack(a former.Advice) []string {
	lines := []string{"-- 503 at the proxy, stop this service, list the users created since " + stamp(r.result.closed) +
		", then run:"}
	lines = append(lines, a.WayBack...)
	lines = append(lines, "-- then start the service there, and add the new users by POST /admin/users there")
	if len(a.WayBackEnd) > 0 {
		lines = append(append(lines, "-- then:"), a.WayBackEnd...)
	}
	return lines
}

// row is a line of the table in the report.
type row struct {
	name string
	tally
}

func (r *run) rows() []row {
	t := r.result.tables
	version := func(n int) tally {
		return tally{There: r.result.versions[n], Carried: r.result.versions[n], Left: map[string]int64{}}
	}
	rows := []row{{"users", *t["users"]}, {"  pending", r.result.pending}, {"  passwords", r.result.passwords},
		{"identities", *t["identities"]}, {"factors", *t["factors"]}, {"passkeys", *t["passkeys"]}, {"sessions", *t["sessions"]},
		{"  version 1", version(1)}, {"  version 2", version(2)}}
	if r.Mode != Ahead {
		rows = append(rows, row{"links", r.result.links})
	}
	return rows
}

func (t *tally) leftOut() (n int64) {
	for _, v := range t.Left {
		n += v
	}
	return n
}

// reasons returns the reasons why rows were left out and their numbers, the most frequent first.
func (t *tally) reasons() string {
	names := slices.Sorted(maps.Keys(t.Left))
	slices.SortStableFunc(names, func(a, b string) int { return int(t.Left[b] - t.Left[a]) })
	var parts []string
	for _, name := range names {
		if t.Left[name] > 0 {
			parts = append(parts, name+" "+count(t.Left[name]))
		}
	}
	return strings.Join(parts, ", ")
}

func (r *run) reportTables() {
	fmt.Fprintf(r.Out, "%-14s %9s %9s %9s\n", "", "there", "carried", "left out")
	for _, one := range r.rows() {
		line := fmt.Sprintf("%-14s %9s %9s %9s   %s", one.name, count(one.There), count(one.Carried),
			count(one.leftOut()), one.reasons())
		fmt.Fprintln(r.Out, strings.TrimRight(line, " "))
	}
}

func (r *run) reportEnd() {
	took := time.Since(r.begun).Round(time.Second)
	first := time.Duration(r.steps.Seconds * float64(time.Second)).Round(time.Second)
	switch {
	case r.Mode == DryRun:
		if r.result.outlook != "" {
			fmt.Fprintln(r.Out, r.result.outlook)
		}
	case r.result.closed.IsZero():
		fmt.Fprintf(r.Out,
			"open since %s, after %v; the first run took %v; auth takeover carries what changes until then, and "+
				"closes it\n",
			stamp(r.move.StartedAt), took, first)
	default:
		rewritten := ""
		if r.result.rewritten > 0 {
			rewritten = fmt.Sprintf(", %s rewritten", count(int64(r.result.rewritten)))
		}
		fmt.Fprintf(r.Out, "verified: the same ids on both sides; %s users and %s sessions compared, 0 differ%s\n",
			count(int64(r.result.sampleUsers)), count(int64(r.result.sampleSessions)), rewritten)
		fmt.Fprintf(r.Out, "closed %s after %v; the first run took %v\n", stamp(r.result.closed), took, first)
	}
}

func (r *run) reportJSON(a former.Advice) error {
	tables := map[string]tally{}
	for _, one := range r.rows() {
		tables[strings.TrimSpace(one.name)] = one.tally
	}
	list := func(lines []string) []string { return append([]string{}, lines...) }
	out := struct {
		Source      string           `json:"source"`
		Version     int64            `json:"version"`
		Schema      string           `json:"schema"`
		DryRun      bool             `json:"dry_run"`
		State       string           `json:"state"`
		Tables      map[string]tally `json:"tables"`
		Warnings    []string         `json:"warnings"`
		Suggestions []string         `json:"suggestions"`
		WayBack     []string         `json:"way_back"`
		Sample      struct {
			Users    int `json:"users"`
			Sessions int `json:"sessions"`
			Differ   int `json:"differ"`
		} `json:"sample"`
		Seconds float64 `json:"seconds"`
	}{
		Source: r.Source.Place(), Version: r.Source.Catalog.Version, Schema: r.result.location.Schema,
		DryRun: r.Mode == DryRun,
		State:  r.state(), Tables: tables, Warnings: list(r.warnings), Suggestions: list(a.Objects),
		WayBack: []string{},
		Seconds: time.Since(r.begun).Seconds(),
	}
	out.Sample.Users, out.Sample.Sessions = r.result.sampleUsers, r.result.sampleSessions
	if !r.result.closed.IsZero() {
		out.Suggestions, out.WayBack = append(list(a.Suggestions), r.Source.Retire()...), r.wayBack(a)
	}
	text, err := json.Marshal(out)
	if err == nil {
		_, err = fmt.Fprintf(r.Out, "%s\n", text)
	}
	return err
}

// countPending counts the unconfirmed users and the passwords in the source.
func (r *run) countPending(ctx context.Context) error {
	duplicates := slices.Collect(maps.Keys(r.duplicates))
	pending, passwords, err := r.Source.Pending(ctx, duplicates)
	if err != nil {
		return err
	}
	if r.refused > 0 {
		passwords.Left["passwords"] += r.refused
	}
	r.result.pending, r.result.passwords = tallyOf(pending), tallyOf(passwords)
	return nil
}

func tallyOf(s former.Share) tally {
	t := tally{There: s.There, Left: s.Left}
	t.Carried = t.There - t.leftOut()
	return t
}

// dryRun reads and converts everything, and writes nothing.
func (r *run) dryRun(ctx context.Context) error {
	if r.move.Floor != nil {
		return r.dryLater(ctx)
	}
	for _, t := range tables {
		r.progress.start(t.name, r.Source.Catalog.About(t.source))
		if err := r.readAll(ctx, t, [16]byte{}, func(b batch) error {
			r.progress.add(int64(b.rows))
			return ctx.Err()
		}); err != nil {
			return err
		}
	}
	return r.dryReport(ctx)
}

// dryReport counts the rows that a run would copy, and writes the report.
func (r *run) dryReport(ctx context.Context) error {
	r.result.links = tally{Left: map[string]int64{}}
	if err := r.readLinks(ctx, func(batch) error { return ctx.Err() }); err != nil {
		return err
	}
	r.result.tables = map[string]*tally{}
	for _, t := range tables {
		counts := &tally{Left: map[string]int64{}}
		r.result.tables[t.name] = counts
		if err := r.merge(ctx, t, nil, false, func(p pair) error {
			if counts.There++; p.reason != "" {
				counts.Left[p.reason]++
				return nil
			}
			if counts.Carried++; t.target == store.CarriedSessions {
				r.result.versions[p.source.Version]++
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return r.report(ctx)
}

// dryLater counts the changes since the first run, and predicts how long the last run will take.
func (r *run) dryLater(ctx context.Context) error {
	changes, err := r.Source.Changed(ctx, former.Floor(*r.move.Floor))
	if err != nil {
		return err
	}
	polled := time.Now()
	for _, t := range tables { // the result does not matter, only the time
		if err := r.merge(ctx, t, nil, true, func(pair) error { return nil }); err != nil {
			return err
		}
	}
	// Assume that the last run reads the ids three times (it may be two), and writes as fast as the first run.
	estimate := 3 * time.Since(polled).Seconds()
	if r.steps.Rows > 0 {
		estimate += float64(changes.Rows) * r.steps.Seconds / float64(r.steps.Rows)
	}
	r.result.outlook = fmt.Sprintf("changed since %s: about %s rows; the last run will take about %v",
		stamp(r.steps.LookedAt), count(changes.Rows),
		max(time.Second, time.Duration(estimate*float64(time.Second)).Round(time.Second)))
	return r.dryReport(ctx)
}
