package former

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Catalog is what the catalogue of the source's database says. Reading it takes no right on the schema.
type Catalog struct {
	*Schema
	// Version is the newest version that was applied; 0 if that can't be read.
	Version int64
	// Database is its name, Role the one that reads it, Owner that of the table users.
	Database, Role, Owner string
	// Now is the server's time. What has expired by then is not carried; what expires later,
	// while a run is at work, is.
	Now time.Time
	// Recovery: the server is a standby.
	Recovery bool
	// Mark changes with the cluster, its timeline and the database, and when the table users is made again.
	Mark string
	// Cluster and DatabaseID are where the schema is, however the connection names it.
	Cluster, DatabaseID string
	// Unreadable are the tables that Role may not read, Hidden those whose rows row-level security would hide.
	Unreadable, Hidden []string

	state map[string]state
}

// state is what Table doesn't say.
type state struct {
	oid              uint32
	rows             int64 // by the statistics
	readable, hidden bool
}

// NotHeaps are the carried tables that are not ordinary ones: their rows don't say when they were written.
func (c *Catalog) NotHeaps() (names []string) {
	for _, name := range Carried {
		if t, there := c.Tables[name]; there && !t.Heap {
			names = append(names, name)
		}
	}
	return names
}

// About is how many rows a table has by its statistics; 0 if there are none.
func (c *Catalog) About(name string) int64 { return max(c.state[name].rows, 0) }

const selectState = `
select c.relname::text, c.oid, c.reltuples::bigint,
    has_table_privilege(c.oid, 'select') and has_schema_privilege(n.oid, 'usage'), row_security_active(c.oid)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = $1 and c.relkind in ('r', 'p', 'v', 'm', 'f')`

// OldMark is the mark as programs before wrote it, without the database.
func (c *Catalog) OldMark() string {
	parts := strings.Split(c.Mark, "/")
	return strings.Join(slices.Delete(parts, 2, 3), "/")
}

// A restored base backup has the cluster's identifier, but another timeline; a restored dump has tables of other
// numbers; a database made from a template has another number itself.
const selectPlace = `
select now(), current_database()::text, current_user::text, pg_is_in_recovery(),
    (select system_identifier from pg_control_system())::text, (select timeline_id from pg_control_checkpoint())::text,
    (select oid from pg_database where datname = current_database())::text,
    coalesce((select pg_get_userbyid(c.relowner)::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
              where n.nspname = $1 and c.relname = 'users'), '')`

// Inspect reads the catalogue. Everything else needs what it has found.
func (s *Source) Inspect(ctx context.Context) error {
	c := Catalog{state: map[string]state{}}
	var timeline string
	err := s.read(ctx, func(conn *pgx.Conn) (err error) {
		if c.Schema, err = ReadSchema(ctx, conn, s.Schema); err != nil {
			return err
		}
		if err := conn.QueryRow(ctx, selectPlace, s.Schema).Scan(
			&c.Now, &c.Database, &c.Role, &c.Recovery, &c.Cluster, &timeline,
			&c.DatabaseID, &c.Owner); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, selectState, s.Schema)
		if err != nil {
			return err
		}
		var name string
		var t state
		_, err = pgx.ForEachRow(rows, []any{&name, &t.oid, &t.rows, &t.readable, &t.hidden}, func() error {
			c.state[name] = t
			return nil
		})
		return err
	})
	if err != nil {
		return err
	}
	for _, name := range append(slices.Clone(Carried), "schema_migrations", "oauth_clients") {
		switch t := c.state[name]; {
		case t.oid == 0:
		case !t.readable:
			c.Unreadable = append(c.Unreadable, name)
		case t.hidden:
			c.Hidden = append(c.Hidden, name)
		}
	}
	c.Mark = strings.Join([]string{c.Cluster, timeline, c.DatabaseID, fmt.Sprint(c.state["users"].oid)}, "/")
	s.Catalog = c
	s.prepareNames()
	if t := c.state["schema_migrations"]; !t.readable || t.hidden {
		return nil
	}
	return s.read(ctx, func(conn *pgx.Conn) (err error) {
		s.Catalog.Version, err = c.ReadVersion(ctx, conn)
		return err
	})
}

// UnknownRows are the unknown tables with rows that Role may read, and how many rows each has.
func (s *Source) UnknownRows(ctx context.Context) (names []string, rows []int64, err error) {
	_, unknown := s.Catalog.Unknown()
	for _, name := range unknown {
		if t := s.Catalog.state[name]; !t.readable || t.hidden {
			continue
		}
		var n int64
		if err := s.row(ctx, "select count(*) from "+s.Catalog.Table(name), []any{&n}); err != nil {
			return nil, nil, err
		}
		if n > 0 {
			names, rows = append(names, name), append(rows, n)
		}
	}
	return names, rows, nil
}
