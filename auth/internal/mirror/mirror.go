// Package mirror implements the command "auth mirror". After a takeover, which has copied the users of a former service
// to our tables, it keeps the tables of the former service current, so that SQL of the application that uses them still
// works.
//
// Row triggers on our tables write users, identities and verified second factors to the former service's tables at the
// end of the transaction that has changed them, without hashes, tokens and secrets. Triggers on the former service's
// tables copy to our tables what the application writes there, or refuse it. The package makes, compares, repairs and
// drops these functions and triggers. None of its Go code runs in a request: the functions run in the database server.
// In names, here means our schema, there the schema of the former service.
package mirror

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/store"
)

// Options are the options of one run of the command.
type Options struct {
	// URL is the connection string for a role that may change both schemas: a superuser, or a member of the role that
	// owns our tables. In the second case it must also be a member of the role that owns the former service's tables,
	// or have all rights on them.
	URL string
	// DB is the daemon's own connection to our tables.
	DB         *store.DB
	Namespace  string
	AdminRoles []string
	// Sessions says whether sessions are mirrored too, Days whether last_sign_in_at is written at most once a day. nil:
	// as in the installed mirror, or false if there is none.
	Sessions, Days *bool
	// SQL prints the statements instead of executing them.
	SQL bool
	// Out receives the report, Log refusals and warnings.
	Out, Log io.Writer

	// Batch is called before each batch of the repair, in tests; nil: not called.
	Batch func()

	// dropping is set by Drop, for which the former service's tables need not exist.
	dropping bool
}

// ErrRefused means that the command was refused; the reasons were written to Log. ErrDiffers means that the report
// lists differences.
var (
	ErrRefused = errors.New("mirror refused")
	ErrDiffers = errors.New("the tables there differ")
)

// run is the state of one run of the command.
type run struct {
	Options
	plan
	conn     *pgx.Conn
	move     store.Move // the takeover from the former service
	place    store.Location
	known    *noted // what is installed; nil: no mirror
	dropped  bool   // a mirror was installed and dropped
	login    string // the role of this connection
	member   bool   // the role is a member of the role that owns our tables
	scrubbed string // when scrub ran, for this mirror or an earlier one; "": never
	refusals []string
}

// noted is what our table moves records of an installed mirror, as JSON.
type noted struct {
	Version  int    `json:"version"`
	Sessions bool   `json:"sessions"`
	SignIns  string `json:"sign_ins"`
	Triggers int    `json:"triggers"`
	Scrubbed string `json:"scrubbed,omitempty"`
}

func (r *run) refuse(format string, args ...any) {
	r.refusals = append(r.refusals, fmt.Sprintf(format, args...))
}

// told prints the reasons to refuse the command. It returns ErrRefused if there is any.
func (r *run) told() error {
	for _, text := range r.refusals {
		fmt.Fprintln(r.Log, "mirror:", text)
	}
	if len(r.refusals) > 0 {
		return ErrRefused
	}
	return nil
}

// needMember refuses the command if this connection's role may not change the functions of the role that owns our
// tables.
func (r *run) needMember() error {
	if !r.member {
		r.refuse("role %s is no member of role %s: grant %s to %s;", r.login, r.role, ident(r.role), ident(r.login))
	}
	return r.told()
}

// query runs a query and converts each of its rows with scan.
func query[T any](ctx context.Context, r *run, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := r.conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

func (r *run) exec(ctx context.Context, sql string, args ...any) error {
	_, err := r.conn.Exec(ctx, sql, args...)
	return err
}

func (r *run) execAll(ctx context.Context, list ...string) error {
	for _, sql := range list {
		if err := r.exec(ctx, sql); err != nil {
			return fmt.Errorf("%w: %s", err, sql)
		}
	}
	return nil
}

// ours returns the quoted and qualified name of one of our tables.
func (r *run) ours(name string) string { return ident(r.here, r.ns+name) }

// theirs returns the quoted and qualified name of a table of the former service.
func (r *run) theirs(name string) string { return ident(r.there.Name, name) }

// open connects to the database, and finds both schemas and what is installed.
func open(ctx context.Context, o Options) (*run, error) {
	r := &run{Options: o}
	moves, err := r.DB.Moves(ctx, store.MoveTakeover)
	if err != nil {
		return nil, err
	}
	if len(moves) == 0 || !moves[0].Closed {
		r.refuse("no takeover of this database is closed: auth takeover comes first")
		return nil, r.told()
	}
	r.move = moves[0]
	config, err := pgx.ParseConfig(o.URL)
	if err != nil {
		return nil, err // the text of pgx's error hides the password
	}
	config.RuntimeParams["application_name"] = "auth mirror"
	// In this mode pgx makes no named prepared statements. They would stay on the server's connection, which a pooler
	// then gives to another client.
	config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	if r.conn, err = pgx.ConnectConfig(ctx, config); err != nil {
		return nil, err
	}
	if err := r.find(ctx); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *run) close() { r.conn.Close(context.Background()) }

// selectPlace returns the owners of our table users and of the former service's table users, if both are in this
// database. It also returns whether the former service's table is the one that the takeover has read. It is if it has
// the same oid, or if it has the mirror's trigger, since a restored dump has other oids. The query needs no right on
// the tables.
const selectPlace = `
select pg_get_userbyid(h.relowner)::text, current_user::text, pg_has_role(h.relowner, 'member'),
    coalesce(pg_get_userbyid(s.relowner)::text, ''), coalesce(pg_has_role(s.relowner, 'member'), false),
    coalesce(s.oid::text, '') = $4 or exists (select from pg_trigger t join pg_proc p on p.oid = t.tgfoid
        where t.tgrelid = s.oid and p.pronamespace = m.oid and p.proname = $7)
from pg_class h join pg_namespace m on m.oid = h.relnamespace
left join (pg_class s join pg_namespace n on n.oid = s.relnamespace) on n.nspname = $3 and s.relname = 'users'
where m.nspname = $1 and h.relname = $2
    and (select system_identifier::text from pg_control_system()) = $5
    and (select oid::text from pg_database where datname = current_database()) = $6`

// find reads where both schemas are, who owns them, and what is installed. The writer, the role that writes the former
// service's tables, is their owner if this connection's role is a member of the owner, and otherwise this connection's
// role.
func (r *run) find(ctx context.Context) (err error) {
	if r.place, err = r.DB.Location(ctx); err != nil {
		return err
	}
	r.plan = plan{here: r.place.Schema, ns: r.Namespace, adminRoles: r.AdminRoles}
	schema := r.move.Source[strings.LastIndexByte(r.move.Source, ' ')+1:]
	if r.there, err = former.ReadSchema(ctx, r.conn, schema); err != nil {
		return err
	}
	var owner string
	var theirs, known bool
	err = r.conn.QueryRow(ctx, selectPlace, r.here, r.ns+"users", schema, r.move.Mark[strings.LastIndexByte(r.move.Mark, '/')+1:],
		r.place.Cluster, r.place.Database, r.ns+"mirror_from_users").
		Scan(&r.role, &r.login, &r.member, &owner, &theirs, &known)
	lacks := owner == "" || !r.there.Holds()
	if errors.Is(err, pgx.ErrNoRows) || err == nil && lacks && !r.dropping {
		r.refuse("a mirror needs the tables of schema %q in this database", schema)
		return r.told()
	}
	if err == nil && !known && !r.dropping {
		r.refuse("the takeover has read the tables of %s, not those of schema %q in this database: if these come from "+
			"a dump, run auth mirror install there, then dump the whole database again", r.move.Source, schema)
		return r.told()
	}
	if r.writer = owner; !theirs {
		r.writer = r.login
	}
	var steps struct {
		Custom map[string]string `json:"custom"`
	}
	if err = cmp.Or(err, json.Unmarshal(r.move.Steps, &steps)); err != nil {
		return err
	}
	r.custom = steps.Custom
	return r.noted(ctx)
}

// noted reads from our table moves what is installed, and whether scrub has run.
func (r *run) noted(ctx context.Context) error {
	list, err := r.DB.Moves(ctx, store.MoveMirror)
	for _, one := range list {
		var n noted
		err = cmp.Or(err, json.Unmarshal(one.Steps, &n))
		r.scrubbed = cmp.Or(r.scrubbed, n.Scrubbed)
		if r.dropped = r.dropped || one.Closed; !one.Closed {
			r.known = &n
			r.sessions, r.days = n.Sessions, n.SignIns == "day"
		}
	}
	return err
}

// openInstalled does the same as open, but refuses if no mirror is installed.
func openInstalled(ctx context.Context, o Options) (*run, error) {
	r, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	if r.known == nil {
		r.close()
		return nil, r.notInstalled()
	}
	return r, nil
}

func (r *run) notInstalled() error {
	r.refuse("no mirror is installed")
	return r.told()
}

const selectWriter = `
select pg_get_userbyid(p.proowner)::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where n.nspname = $1 and p.proname = any($2) group by 1 order by count(*) desc, 1 limit 1`

// findWriter sets r.writer to the writer of the installed mirror: the owner of most of the functions that write tables
// of the former service and that exist in every version. If there are no such functions, it returns false and does not
// change r.writer.
func (r *run) findWriter(ctx context.Context) (bool, error) {
	list, err := r.lines(ctx, selectWriter, r.here, []string{r.ns + "mirror_set_user", r.ns + "mirror_blank",
		r.ns + "mirror_drop", r.ns + "mirror_settle"})
	if err != nil || len(list) == 0 {
		return false, err
	}
	r.writer = list[0]
	return true, nil
}

const selectMade = `
select format('drop function %s cascade', p.oid::regprocedure) from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where n.nspname = $1 and p.proname like $2
union all
select format('drop type %s cascade', t.oid::regtype) from pg_type t join pg_namespace n on n.oid = t.typnamespace
where n.nspname = $1 and t.typname like $2 and t.typtype = 'c'
order by 1`

// unmake returns the statements that drop all functions and types of the mirror, and with them its triggers.
func (r *run) unmake(ctx context.Context) ([]string, error) {
	return r.lines(ctx, selectMade, r.here, r.like())
}

// like returns a LIKE pattern that matches the names of all functions, types and triggers of the mirror.
func (r *run) like() string { return strings.ReplaceAll(r.ns+"mirror_", "_", `\_`) + "%" }

// replace does three things in one transaction: it drops the mirror's functions and triggers, executes the statements
// in list, which make new ones, and calls the function then. The transaction locks our tables. While it waits for a
// lock, all requests wait behind it, and a request that holds one table and waits for another would deadlock with it.
// So an attempt waits only a short time for its locks, and the next attempt a little longer. When the time reaches the
// server's deadlock_timeout, the server resolves deadlocks by ending one of the two transactions; a request that is
// ended in this way is executed again.
func (r *run) replace(ctx context.Context, list []string, then func() error) (err error) {
	for wait := 5 * time.Millisecond; wait < 1500*time.Millisecond; wait += wait / 3 {
		err = pgx.BeginFunc(ctx, r.conn, func(pgx.Tx) error { return r.replaceOnce(ctx, wait, list, then) })
		if !gaveWay(err) {
			break
		}
		time.Sleep(20 * time.Millisecond) // let the waiting requests through
	}
	return err
}

// gaveWay reports whether a transaction failed because of a concurrent transaction, so that trying again may help.
func gaveWay(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "55P03" || store.IsContention(err))
}

// printReplace prints the transaction that replace would execute: it locks our tables, drops the old functions, and
// executes the statements in list.
func (r *run) printReplace(old []string, list ...string) {
	r.print(slices.Concat([]string{r.lock(len(old) > 0)}, old, list)...)
}

// print prints a transaction for psql. The comment before it names the psql option without which psql continues after
// an error and reports success.
func (r *run) print(list ...string) {
	fmt.Fprintf(r.Out, "-- psql -v ON_ERROR_STOP=1 -f FILE; a failure, such as a lock timeout, changes nothing: "+
		"run it again\nbegin;\nset local lock_timeout = '3s';\n%s;\ncommit;\n", strings.Join(list, ";\n"))
}

func (r *run) replaceOnce(ctx context.Context, wait time.Duration, list []string, then func() error) error {
	old, err := r.unmake(ctx)
	if err == nil {
		err = r.execAll(ctx, fmt.Sprintf("set local lock_timeout = %d", wait.Milliseconds()), r.lock(len(old) > 0))
	}
	if err == nil {
		old, err = r.unmake(ctx) // another run of the command may have replaced them meanwhile
	}
	if err == nil {
		err = r.execAll(ctx, slices.Concat(old, list)...)
	}
	if err == nil {
		err = then()
	}
	return err
}

// Drop removes the mirror, and prints the SQL with which the former service can be used again (the way back). If the
// mirror was removed before, it prints that SQL again, since the first output may be lost, or the statements printed
// with o.SQL were executed by another role. With o.SQL it does not print that SQL: the output is executed as it is, and
// must not write to the former service's tables.
func Drop(ctx context.Context, o Options) error {
	o.dropping = true
	r, err := open(ctx, o)
	if err != nil {
		return err
	}
	defer r.close()
	made, err := r.unmake(ctx)
	if err != nil {
		return err
	}
	// The statements that install prints with -sql make the functions without recording that. So look for the functions
	// too.
	switch left := r.known != nil || len(made) > 0; {
	case !left && !r.dropped:
		return r.notInstalled()
	case o.SQL && !left:
		fmt.Fprintln(o.Out, "-- the mirror is dropped; without -sql, auth mirror drop prints the way back")
		return nil
	case o.SQL:
		r.printReplace(made, r.markDropped())
		return nil
	case left:
		if err := r.needMember(); err != nil {
			return err
		}
		if err := r.replace(ctx, nil, func() error { return r.exec(ctx, r.markDropped()) }); err != nil {
			return err
		}
	}
	fmt.Fprintf(o.Out, "-- dropped the mirror of schema %s\n", r.there.Name)
	if r.scrubbed != "" {
		fmt.Fprintf(o.Out, "-- scrub ran on %s: the secrets of factors, passkeys and sessions there do not come back\n", r.scrubbed)
	}
	if r.there.Holds() {
		fmt.Fprintln(o.Out, r.wayBack())
	}
	return nil
}

// markDropped returns the statement that records the removal of the mirror. It needs no more rights than the other
// statements of the removal.
func (r *run) markDropped() string {
	return "update " + r.ours("moves") + " set state = 'closed', closed_at = now() where kind = 'mirror' and state = 'open'"
}

// lock returns the statement that locks our tables, which must be locked before other statements lock the former
// service's tables. Dropping a trigger needs an exclusive lock. If exclusive is true, the statement takes this lock at
// once, since upgrading a weaker lock could deadlock with a request.
func (r *run) lock(exclusive bool) string {
	text := "lock table " + r.ours("users")
	for _, name := range []string{"identities", "factors", "sessions", "one_time_tokens"} {
		text += ", " + r.ours(name)
	}
	if exclusive {
		return text + " in access exclusive mode"
	}
	return text + " in share row exclusive mode"
}

// wayBack returns the SQL that makes the former service usable again after the mirror was dropped. It copies the
// password hashes that the former service understands, and deletes from the former service's tables the sessions that
// have ended in ours and the factors without a secret.
func (r *run) wayBack() string {
	blank := "u.id = o.id and u.password_hash ~ '^\\$(2[aby]|argon2i|argon2id|fbscrypt)\\$'"
	return fmt.Sprintf(`-- way back: run this, then start the service there
update %[1]s o set encrypted_password = u.password_hash from %[2]s u where %[3]s and o.encrypted_password is distinct from u.password_hash;
delete from %[4]s f where f.status::text = 'verified' and f.factor_type::text = 'totp' and coalesce(f.secret, '') = '';
delete from %[5]s s where exists (select from %[2]s u where u.id = s.user_id)
    and not exists (select from %[6]s h where h.id = s.id and h.ended_at is null);`, r.theirs("users"), r.ours("users"),
		blank, r.theirs("mfa_factors"), r.theirs("sessions"), r.ours("sessions"))
}
