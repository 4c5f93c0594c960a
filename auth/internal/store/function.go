package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// ErrFunctionTime means that a function of the operator has exceeded its time limit.
var ErrFunctionTime = errors.New("the function took too long")

// afterFunction resets everything that a function may have set for the database session, so that it does not affect the
// next use of the connection. RESET ALL resets neither the role nor the session authorization.
const afterFunction = "reset all; reset session authorization; reset role; commit"

// CallFunction calls a function of the operator with one JSON parameter, in its own transaction. limit is the time
// limit of the statement. It returns the result as text, or nil for null and void.
func (db *DB) CallFunction(ctx context.Context, schema, function string, input []byte,
	limit time.Duration) (out []byte, err error) {
	return db.callFunction(ctx, functionCall(schema, function), input, limit, afterFunction)
}

// TryFunction does the same as CallFunction, but rolls back what the function has done.
func (db *DB) TryFunction(ctx context.Context, schema, function string, input []byte,
	limit time.Duration) (out []byte, err error) {
	return db.callFunction(ctx, functionCall(schema, function), input, limit, "rollback")
}

func (db *DB) callFunction(ctx context.Context, call string, input []byte, limit time.Duration,
	end string) (out []byte, err error) {
	err = db.withConn(ctx, "function", func(c *pgx.Conn) error {
		if err := execSimple(ctx, c, fmt.Sprintf("begin; set local statement_timeout = %d",
			limit.Milliseconds())); err != nil {
			return err
		}
		// The statement is prepared for each call, since the operator may replace the function while the daemon runs.
		err := c.QueryRow(ctx, call, pgx.QueryExecModeDescribeExec, string(input)).Scan(&out)
		if err != nil {
			execSimple(ctx, c, "rollback") // if this fails, the pool closes the connection
			return err
		}
		return execSimple(ctx, c, end)
	})
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "57014" &&
		ctx.Err() == nil { // query_canceled although the caller still waits: the time limit
		return nil, fmt.Errorf("%w: %w", ErrFunctionTime, err)
	}
	return out, err
}

// execSimple sends several SQL commands in one round trip.
func execSimple(ctx context.Context, c *pgx.Conn, commands string) error {
	_, err := c.Exec(ctx, commands, pgx.QueryExecModeSimpleProtocol)
	return err
}

func functionCall(schema, function string) string {
	return fmt.Sprintf("select (%s($1))::text", pgx.Identifier{schema, function}.Sanitize())
}

// functionsNamed returns the functions with a name, and whether the daemon's role may use their schema and execute
// them.
var functionsNamed = define(`
select p.oid::regprocedure::text, p.prorettype::regtype::text, p.proretset,
       has_schema_privilege(n.oid, 'usage'), has_function_privilege(p.oid, 'execute')
from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where n.nspname = $1 and p.proname = $2
order by 1`)

// CheckFunction returns an error that says why CallFunction could not call a function of the operator, or nil if it
// could. It does not call the function.
func (db *DB) CheckFunction(ctx context.Context, schema, function string) error {
	type candidate struct {
		signature, returns string
		many, see, call    bool
	}
	var all []candidate
	err := db.query(ctx, "functions", appendTo(&all, func(c *candidate) []any {
		return []any{&c.signature, &c.returns, &c.many, &c.see, &c.call}
	}), functionsNamed, schema, function)
	if err != nil {
		return err
	}
	name := schema + "." + function
	if len(all) == 0 {
		return fmt.Errorf("there is no function %s", name)
	}
	if !all[0].see {
		return fmt.Errorf("the database user lacks USAGE on schema %s", schema)
	}
	var takes uint32
	err = db.withConn(ctx, "function", func(c *pgx.Conn) error {
		d, err := c.Prepare(ctx, "", functionCall(schema, function))
		if err == nil {
			takes = d.ParamOIDs[0]
		}
		return err
	})
	pg, _ := errors.AsType[*pgconn.PgError](err)
	switch {
	case pg != nil && pg.Code == "42725": // ambiguous_function
		return fmt.Errorf("there are several functions %s of one parameter: the hook's must be the only one", name)
	case pg != nil && pg.Code == "42883", err == nil && !jsonTypes[takes]: // undefined_function
		return fmt.Errorf("%s takes no single json or jsonb", all[0].signature)
	case err != nil:
		return err
	}
	for _, c := range all {
		switch {
		case !c.call && len(all) == 1:
			return fmt.Errorf("the database user lacks EXECUTE on function %s", c.signature)
		case len(all) == 1 && c.many:
			return fmt.Errorf("%s returns several rows, not one json or jsonb", c.signature)
		case len(all) == 1 && !slices.Contains([]string{"json", "jsonb", "text", "void"}, c.returns):
			return fmt.Errorf("%s returns %s, not json or jsonb", c.signature, c.returns)
		}
	}
	return nil
}

// jsonTypes are the parameter types to which JSON text can be passed: json, jsonb and text.
var jsonTypes = map[uint32]bool{pgtype.JSONOID: true, pgtype.JSONBOID: true, pgtype.TextOID: true}
