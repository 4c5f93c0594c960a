package mirror

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

const selectFunctions = `
select p.proname::text, pg_get_userbyid(p.proowner)::text, p.prosrc, p.prosecdef,
    coalesce(p.proconfig, '{}'), array(select distinct coalesce(g.rolname::text, 'PUBLIC')
        from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a left join pg_roles g on g.oid = a.grantee)
from pg_proc p join pg_namespace n on n.oid = p.pronamespace where n.nspname = $1 and p.proname like $2`

const selectTriggers = `
select t.tgname::text || ' on ' || format('%I.%I', n.nspname, c.relname), t.tgenabled::text, pg_get_triggerdef(t.oid)
from pg_trigger t join pg_proc p on p.oid = t.tgfoid join pg_namespace f on f.oid = p.pronamespace
join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
where f.nspname = $1 and p.proname like $2 and not t.tgisinternal`

// altered compares the functions and triggers in the database with those that this version of the program would make,
// and returns a line for each that differs. It also returns a line if the writer, the role that writes the former
// service's tables, lacks a right that the functions need.
func (r *run) altered(ctx context.Context) (found []string, err error) {
	type made struct {
		Name, Owner, Source string
		Definer             bool
		Config, Grantees    []string
	}
	functions, err := query(ctx, r, pgx.RowToStructByPos[made], selectFunctions, r.here, r.like())
	if err != nil {
		return nil, err
	}
	found, err = r.lines(ctx, "select format('role %I lacks USAGE on schema %I', $1::text, $2::text) "+
		"where not has_schema_privilege($1::text::name, $2::text, 'usage')", r.writer, r.here)
	if err != nil {
		return nil, err
	}
	for _, want := range r.functions() {
		name, got := "function "+ident(r.here, want.name), made{}
		if i := slices.IndexFunc(functions, func(f made) bool { return f.Name == want.name }); i >= 0 {
			got = functions[i]
		}
		switch {
		case got.Name == "":
			found = append(found, name+" is missing")
		case got.Owner != want.owner:
			found = append(found, fmt.Sprintf("%s is owned by %s, not %s", name, got.Owner, want.owner))
		case !got.Definer || unquoted(strings.Join(got.Config, ";")) != unquoted(strings.Join(want.config, ";")):
			found = append(found, name+" runs with other rights or another search_path than it was made with")
		case !sameSet(got.Grantees, want.runners()):
			found = append(found, fmt.Sprintf("%s may be run by %s, not %s", name,
				cmp.Or(strings.Join(got.Grantees, ", "), "nobody"), strings.Join(want.runners(), ", ")))
		case strings.TrimSpace(got.Source) != strings.TrimSpace(want.body):
			found = append(found, name+" has another text")
		}
	}
	triggers, err := r.alteredTriggers(ctx)
	return append(found, triggers...), err
}

// runners returns the roles that may execute the function.
func (f function) runners() []string {
	if f.grantee == "" {
		return []string{f.owner}
	}
	return []string{f.owner, f.grantee}
}

func (r *run) alteredTriggers(ctx context.Context) (found []string, err error) {
	type fired struct{ Name, Enabled, Definition string }
	triggers, err := query(ctx, r, pgx.RowToStructByPos[fired], selectTriggers, r.here, r.like())
	for _, want := range r.triggers() {
		name := unquoted(want.name + " on " + want.table)
		i := slices.IndexFunc(triggers, func(f fired) bool { return unquoted(f.Name) == name })
		switch {
		case i < 0:
			found = append(found, "trigger "+name+" is missing")
		case triggers[i].Enabled != "O" && triggers[i].Enabled != "A":
			found = append(found, "trigger "+name+" is disabled")
		case !sameSet(r.words(triggers[i].Definition), r.words(want.create(&r.plan))):
			found = append(found, "trigger "+name+" has other events or another condition")
		}
	}
	return found, err
}

var word = regexp.MustCompile(`'[^']*'|[\w.]+|<>|=`)

// words splits a trigger's definition into words, for a comparison. It leaves out the words that PostgreSQL adds or
// omits when it prints a definition.
func (r *run) words(definition string) []string {
	definition = strings.ReplaceAll(strings.ToLower(unquoted(definition)), " "+strings.ToLower(r.here)+".", " ")
	return slices.DeleteFunc(word.FindAllString(definition, -1), func(w string) bool {
		return slices.Contains([]string{"and", "or", "text", "at", "time", "zone", "timezone"}, w)
	})
}

// sameSet reports whether two lists have the same elements, whatever their order and number.
func sameSet(a, b []string) bool {
	set := func(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }
	return slices.Equal(set(a), set(b))
}

// unquoted removes the quotes from an SQL text before a comparison: this program quotes all names, PostgreSQL only the
// names that need it.
func unquoted(text string) string { return strings.ReplaceAll(text, `"`, "") }
