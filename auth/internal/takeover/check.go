package takeover

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/address"
	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/store"
)

// findings are the warnings and refusals of the checks before a run, in the order in which they were found. A refusal
// is a reason not to start the run.
type findings struct {
	r        *run
	refusals []string
}

func (f *findings) refuse(format string, args ...any) {
	f.refusals = append(f.refusals, fmt.Sprintf(format, args...))
}

func (f *findings) warn(format string, args ...any) {
	f.r.warnings = append(f.r.warnings, fmt.Sprintf(format, args...))
}

// accept adds a refusal if n is not 0, unless the operator has accepted the loss of these rows with -leave-out kind.
func (f *findings) accept(kind string, n int64, format string, args ...any) {
	if n > 0 && !f.r.leaves(kind) {
		f.refuse(format+"; -leave-out "+kind+" accepts that", args...)
	}
}

// told logs the warnings and refusals. It returns ErrRefused if there is a refusal.
func (f *findings) told() error {
	for _, text := range f.r.warnings {
		fmt.Fprintln(f.r.Log, "takeover: warning:", text)
	}
	for _, text := range f.refusals {
		fmt.Fprintln(f.r.Log, "takeover:", text)
	}
	if len(f.refusals) > 0 {
		return ErrRefused
	}
	return nil
}

// check looks for everything that prevents the run, before anything is written, and logs it.
func (r *run) check(ctx context.Context) error {
	f := &findings{r: r}
	if err := r.Source.Inspect(ctx); err != nil {
		return fmt.Errorf("the source: %w", hideValues(err))
	}
	c := &r.Source.Catalog
	if !c.Holds() {
		f.refuse("schema %q does not hold the tables of the replaced service (looked for users.raw_app_meta_data, "+
			"identities, sessions, refresh_tokens)", r.Source.Schema)
		return f.told()
	}
	if err := f.version(ctx); err != nil {
		return err
	}
	ready, err := f.target(ctx)
	if err != nil {
		return err
	}
	for _, name := range c.Unreadable {
		f.refuse("role %s may not read %s.%s: grant usage on schema %s to %s; grant select on all tables in schema "+
			"%s to %s;", c.Role,
			r.Source.Schema, name, r.Source.Schema, c.Role, r.Source.Schema, c.Role)
	}
	for _, name := range c.Hidden {
		f.refuse("row-level security hides rows of %s.%s from role %s: connect as the tables' owner, or as a role "+
			"with BYPASSRLS",
			r.Source.Schema, name, c.Role)
	}
	if len(c.Unreadable)+len(c.Hidden) > 0 {
		return f.told()
	}
	oldest, next, clock, err := r.Source.Snapshot(ctx)
	if err != nil {
		return err
	}
	if r.floor, r.clock = oldest, clock; r.Mode == Last {
		if r.before, err = r.Source.Changed(ctx, oldest); err != nil {
			return err
		}
	}
	if ready && r.move.ID != uuid.Nil {
		f.mark(next)
	}
	f.kinds()
	if err := f.contents(ctx); err != nil {
		return err
	}
	if r.Mode == Last {
		if err := f.clients(ctx); err != nil {
			return err
		}
	}
	return f.told()
}

// clients warns of connections of other programs to the source, since the former service must be stopped before the
// last run.
func (f *findings) clients(ctx context.Context) (err error) {
	r := f.r
	c := &r.Source.Catalog
	own := []int32{}
	if r.result.sameDatabase {
		if own, err = r.DB.OwnProcesses(ctx); err != nil {
			return err
		}
	}
	hosts, err := r.Source.Clients(ctx, own)
	if err != nil {
		return err
	}
	for _, host := range slices.Sorted(maps.Keys(hosts)) {
		if host == "" {
			f.warn("role %s has %d connections to the schema there, and role %s may not see where from (grant "+
				"pg_read_all_stats to %s;): is the service stopped?",
				c.Owner, hosts[host], c.Role, c.Role)
			continue
		}
		f.warn("role %s has %d connections from %s to the schema there: is the service stopped?", c.Owner,
			hosts[host], host)
	}
	return nil
}

// version checks that the source's tables were made by a release of the former service that this program supports.
func (f *findings) version(ctx context.Context) error {
	c := &f.r.Source.Catalog
	readable := !slices.Contains(c.Unreadable, "schema_migrations") && !slices.Contains(c.Hidden, "schema_migrations")
	if readable && c.Version < former.Oldest || len(c.Tables["one_time_tokens"].Columns) == 0 {
		f.refuse("schema %q is at version %d, and %d or newer is needed: start a newer release of the replaced "+
			"service on it once", f.r.Source.Schema, c.Version, former.Oldest)
	}
	if len(c.Unreadable)+len(c.Hidden) > 0 {
		return nil
	}
	columns, _ := c.Unknown()
	names, err := f.r.Source.UnknownRows(ctx)
	if err != nil {
		return err
	}
	var left []string
	if len(columns) > 0 {
		left = append(left, "the columns "+strings.Join(columns, ", "))
	}
	if len(names) > 0 {
		left = append(left, "the tables "+strings.Join(names, ", "))
	}
	if c.Version <= former.Newest {
		if len(left) > 0 { // these belong to the application or the operator
			f.warn("schema %q has what is none of the replaced service's: left alone are %s", f.r.Source.Schema,
				strings.Join(left, ", "))
		}
		return nil
	}
	if len(left) == 0 {
		left = []string{"nothing that was found"}
	}
	f.warn("schema %q is newer (%d) than this program knows: left alone are %s", f.r.Source.Schema, c.Version,
		strings.Join(left, ", "))
	return nil
}

// target checks the tables to which the rows are copied. ready is true if they exist and can be queried.
func (f *findings) target(ctx context.Context) (ready bool, err error) {
	r := f.r
	place, err := r.DB.Location(ctx)
	if err != nil {
		return false, err
	}
	r.result.location = place
	c := &r.Source.Catalog
	same := place.Cluster == c.Cluster && place.Database == c.DatabaseID
	if same && place.Schema == r.Source.Schema && r.Settings.Namespace == "" {
		f.refuse("%s", former.Occupied(place.Schema, place.Role))
		return false, nil
	}
	r.result.sameDatabase = same
	if lacks, err := f.rights(ctx); err != nil || lacks {
		return false, err
	}
	n, err := r.DB.Pending(ctx)
	if err != nil {
		return false, err
	}
	if n > 0 {
		f.refuse("the database lacks %d migrations: auth migrate applies them", n)
		return false, nil
	}
	if err := f.foreignKeys(ctx); err != nil {
		return false, err
	}
	return true, f.moves(ctx)
}

// rights refuses the run if this program's role lacks rights. Otherwise the missing rights would look like missing
// tables, or make the first statement fail.
func (f *findings) rights(ctx context.Context) (lacks bool, err error) {
	place := f.r.result.location
	serving, _, err := f.r.DB.MissingRights(ctx)
	for _, right := range serving {
		word, on, _ := strings.Cut(right, " on ")
		kind, name, _ := strings.Cut(on, " ")
		switch kind {
		case "schema":
			on = "schema " + former.Name(name)
		case "table":
			on = former.Name(place.Schema, name)
		default:
			continue
		}
		f.refuse("role %s lacks %s: grant %s on %s to %s;", place.Role, right, strings.ToLower(word), on,
			former.Name(place.Role))
		lacks = true
	}
	return lacks, err
}

// foreignKeys refuses the run if tables of the application refer to our users: if the takeover deletes a user,
// PostgreSQL would also delete the application's rows.
func (f *findings) foreignKeys(ctx context.Context) error {
	keys, err := f.r.DB.ForeignKeys(ctx)
	if err != nil {
		return err
	}
	for _, k := range keys {
		f.refuse("%s refers to %s here already, and its rows would go with users that are deleted here: move the key "+
			"back first: %s", k.Table,
			k.Target, f.r.moveBack(k))
	}
	return nil
}

// moves looks for an open or a closed takeover, and for users that were not written by a takeover.
func (f *findings) moves(ctx context.Context) error {
	r := f.r
	list, err := r.DB.Moves(ctx, store.MoveTakeover)
	if err != nil {
		return err
	}
	users, err := r.DB.CountUsers(ctx)
	if err != nil {
		return err
	}
	switch {
	case len(list) > 0 && list[0].Closed:
		f.refuse("the takeover from %s was closed at %s", list[0].Source, stamp(list[0].ClosedAt))
	case len(list) > 0:
		m := list[0]
		if m.Source == r.Source.Place() && m.Mark == r.Source.Catalog.OldMark() {
			m.Mark = r.Source.Catalog.Mark // open stores the new form of the mark
		}
		if m.Source != r.Source.Place() && m.Mark != r.Source.Catalog.Mark {
			f.refuse("a takeover from %s is open since %s: auth takeover -abandon empties the tables", m.Source,
				stamp(m.StartedAt))
			return nil
		}
		if err := r.resume(m); err != nil {
			return err
		}
		if err := r.signups(users); err != nil {
			f.refuse("%v", err)
		}
	case users > 0:
		f.refuse("this service has %d users already: a takeover needs empty tables", users)
	}
	return nil
}

// maxAge is how many transactions of the source may have begun since the transaction whose id is the floor of the next
// pass. PostgreSQL can tell the older of two transaction ids only over about twice this distance (2^31).
const maxAge = 1_000_000_000

// mark refuses the run if the source's tables are not those of the first run, or if the transaction id that is stored
// as the floor of the next pass is not valid in the source. next is the source's next transaction id.
func (f *findings) mark(next former.Floor) {
	m := &f.r.move
	floor := m.Floor
	if floor == nil {
		floor = m.PassFloor
	}
	if m.Mark != f.r.Source.Catalog.Mark || floor != nil && (int64(next) < *floor || int64(next)-*floor > maxAge) {
		f.refuse("the tables there are not those of the first run: auth takeover -abandon, then begin anew")
	}
}

// kinds refuses a run whose mode the source does not allow. A run with -ahead, and every run after the first pass,
// needs ordinary tables, which show which rows have changed. The last run needs a source that is not a replica.
func (f *findings) kinds() {
	c := &f.r.Source.Catalog
	if names := c.NotHeaps(); len(names) > 0 && (f.r.Mode == Ahead || f.r.move.Floor != nil) {
		f.refuse(
			"%s.%s is no ordinary table, and does not tell which of its rows have changed: run this without -ahead",
			f.r.Source.Schema, strings.Join(names, ", "+f.r.Source.Schema+"."))
	}
	if c.Recovery && f.r.Mode == Last {
		f.refuse("the database there is in recovery, and the last run would miss what is not replayed yet: connect " +
			"to its primary (-ahead and -dry-run may read here)")
	}
}

// contents checks the rows of the source.
func (f *findings) contents(ctx context.Context) error {
	r := f.r
	if err := f.encrypted(ctx); err != nil {
		return err
	}
	counts, err := r.Source.Count(ctx, r.Settings.AdminRoles)
	if err != nil {
		return err
	}
	f.accept("instances", counts.Instances, "%d users belong to other instances", counts.Instances)
	if err := f.duplicates(ctx); err != nil {
		return err
	}
	f.accept("saml", counts.SAML, "%d users sign in by SAML only", counts.SAML)
	f.accept("web3", counts.Wallets, "%d users sign in by a wallet only", counts.Wallets)
	f.accept("oauth", counts.OAuthSessions+counts.OAuthClients, "%d sessions of %d OAuth clients", counts.OAuthSessions,
		counts.OAuthClients)
	if counts.OAuthClients > 0 && f.r.leaves("oauth") {
		f.warn("left alone are %d OAuth clients and their %d sessions", counts.OAuthClients, counts.OAuthSessions)
	}
	if counts.Super > 0 {
		f.warn("%d users have is_super_admin, which means nothing here; %d users have a role of AUTH_JWT_ADMIN_ROLES",
			counts.Super, counts.Admins)
	}
	return f.providers(ctx)
}

// providers warns of identities that cannot be used to sign in until their provider is configured in this service.
func (f *findings) providers(ctx context.Context) error {
	r := f.r
	names, err := r.Source.CustomProviders(ctx)
	if err != nil {
		return err
	}
	r.m.custom = customProviders(names, r.Settings.Providers, r.steps.Custom)
	counts, err := r.Source.ProviderCounts(ctx)
	if err != nil {
		return err
	}
	for _, original := range slices.Sorted(maps.Keys(counts)) {
		name := r.m.provider(original)
		on := r.Settings.Providers[strings.TrimSuffix(name, "_oidc")] || r.Settings.Providers[name] ||
			r.Settings.Free[name]
		text := "it"
		if name != original {
			text = "AUTH_EXTERNAL_OIDC_" + strings.ToUpper(name) + "_ISSUER"
		}
		if !on {
			f.warn("%d identities of provider %s, which is off here: nobody signs in with them until %s is on",
				counts[original], original, text)
		}
	}
	return nil
}

// duplicates finds groups of users whose email addresses or phone numbers differ only in spelling. Of each group only
// the user who has signed in last is copied.
func (f *findings) duplicates(ctx context.Context) error {
	r := f.r
	var pairs []string
	var groups int64
	for _, column := range []string{"email", "phone"} {
		fold := address.Fold
		if column == "phone" {
			fold = address.FoldPhone
		}
		same, err := r.namesakes(ctx, column, fold)
		if err != nil {
			return err
		}
		for _, users := range same {
			sorted, err := r.Source.Latest(ctx, users)
			if err != nil {
				return err
			}
			if groups++; len(pairs) < 20 {
				pairs = append(pairs, joinIDs(sorted))
			}
			for _, duplicate := range sorted[1:] {
				r.duplicates[duplicate] = true
			}
		}
	}
	f.accept("duplicates", groups, "%d addresses stand twice when written in lower case: %s", groups,
		strings.Join(pairs, ", "))
	return nil
}

func joinIDs(list []uuid.UUID) string {
	return strings.Trim(fmt.Sprint(list), "[]")
}

// namesakes returns the groups of users who have the same address in a column after the function fold was applied to
// it. The source's query only preselects users, since PostgreSQL's lower case depends on the database's collation.
func (r *run) namesakes(ctx context.Context, column string, fold func(string) string) (groups [][]uuid.UUID,
	err error) {
	type key struct{ aud, address string }
	byKey := map[key]map[uuid.UUID]bool{}
	add := func(user uuid.UUID, aud, text string) error {
		aud = cmp.Or(aud, r.Settings.Audience)
		k := key{aud, fold(text)}
		if byKey[k] == nil {
			byKey[k] = map[uuid.UUID]bool{}
		}
		byKey[k][user] = true
		return nil
	}
	if err := r.Source.OddAddresses(ctx, column, add); err != nil {
		return nil, err
	}
	var list []string
	for k := range byKey {
		list = append(list, k.address)
	}
	slices.Sort(list)
	list = slices.Compact(list)
	for part := range slices.Chunk(list, former.BatchRows) {
		if err := r.Source.WithAddress(ctx, column, part, add); err != nil {
			return nil, err
		}
	}
	for _, users := range byKey {
		if len(users) > 1 {
			groups = append(groups, slices.SortedFunc(maps.Keys(users), func(a, b uuid.UUID) int {
				return bytes.Compare(a[:], b[:])
			}))
		}
	}
	slices.SortFunc(groups, func(a, b []uuid.UUID) int { return strings.Compare(joinIDs(a), joinIDs(b)) })
	return groups, nil
}

// stamp formats a time for the report.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
