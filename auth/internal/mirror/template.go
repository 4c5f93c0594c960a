package mirror

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/store"
)

//go:embed mirror.sql
var userFunctions string

//go:embed rows.sql
var rowFunctions string

// plan has everything that determines the functions and triggers of a mirror.
type plan struct {
	there *former.Schema
	// here is the name of our schema, ns the prefix of the names of our tables and functions in it.
	here, ns string
	// role is the role that owns our tables, writer the role that writes the former service's tables.
	role, writer string
	adminRoles   []string
	// custom maps the former service's names of custom providers to ours.
	custom         map[string]string
	sessions, days bool
}

// function is an SQL function of the mirror.
type function struct {
	name, owner, args, returns, body string
	config                           []string
	// grantee is the role that may execute the function, in addition to its owner; "": only triggers execute it.
	grantee string
}

func ident(parts ...string) string { return pgx.Identifier(parts).Sanitize() }

func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// tables returns the mirrored tables other than users. Their rows belong to users.
func (p *plan) tables() []rows {
	if p.sessions {
		return []rows{identities, factors, sessions}
	}
	return []rows{identities, factors}
}

// have returns those columns of list that the former service's table has, since its columns depend on the former
// service's version.
func (p *plan) have(table string, list []column) (have []column) {
	for _, c := range list {
		if p.there.Has(table, c.name) {
			if c.name == "last_sign_in_at" && table == "users" && p.days {
				c.differs = day("o.last_sign_in_at") + " is distinct from " + day("n.last_sign_in_at")
			}
			have = append(have, c)
		}
	}
	return have
}

func day(column string) string { return "(" + column + " at time zone 'UTC')::date" }

// source returns the SQL expression for the column's value, over our row u.
func (c column) source() string { return cmp.Or(c.from, "u."+cmp.Or(c.here, c.name)) }

func (c column) differ() string {
	if c.differs != "" {
		return "(" + c.differs + ")"
	}
	old := "o." + c.name
	if c.cast != "" {
		old += "::text"
	}
	return old + " is distinct from n." + c.name
}

// value returns the SQL expression for the new value of the former service's column.
func (p *plan) value(c column) string {
	switch {
	case c.set != "":
		return c.set
	case c.cast != "":
		return "n." + c.name + "::" + ident(p.there.Name, c.cast)
	}
	return "n." + c.name
}

// each calls f for each column and joins the results that are not empty.
func each(list []column, sep string, f func(column) string) string {
	var parts []string
	for _, c := range list {
		if text := f(c); text != "" {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, sep)
}

func name(c column) string { return c.name }

// image returns the query that reads rows of our table in the form of the rows of the former service's table.
func (p *plan) image(table string, list []column) string {
	text := "select " + each(list, ", ", column.source) + ", u.{updated} from {H}.{N}" +
		table + " u"
	if table == "users" {
		text = strings.ReplaceAll(text, "u.{updated}", "u.updated_at, "+claimed) + `
    left join lateral (select t.user_metadata from {H}.{N}one_time_tokens t
        where t.user_id = u.id and t.kind = 'signup' and t.user_metadata is not null
        order by t.created_at desc, t.id desc limit 1) c on ` + claimed
	}
	updated := "updated_at"
	if table == "sessions" {
		updated = "refreshed_at"
	}
	return strings.ReplaceAll(text, "{updated}", updated)
}

// types returns the definitions of the composite types, by name. Each has the mirrored columns of a table of the former
// service.
func (p *plan) types() map[string]string {
	types := map[string]string{}
	field := func(c column) string { return c.name + " " + c.typ }
	types["mirror_user"] = each(p.have("users", userColumns), ", ", field) + ", updated_at timestamptz, claimed boolean"
	for _, t := range p.tables() {
		types["mirror_"+t.row] = each(p.have(t.there, t.columns), ", ", field) + ", updated_at timestamptz"
	}
	return types
}

// groups returns the statements that update a row of the former service's table users. There is one UPDATE for each
// group of columns, so that it fires only those triggers of the application that are for columns of the group.
func (p *plan) groups() string {
	var b strings.Builder
	list := p.have("users", userColumns)
	for g := 1; g <= 11; g++ {
		var of []column
		for _, c := range list {
			if c.group == g {
				of = append(of, c)
			}
		}
		if len(of) == 0 {
			continue
		}
		fmt.Fprintf(&b, "if step <= %d and (%s) then\n        ", g, each(of, " or ", column.differ))
		b.WriteString(p.update("users", of))
		fmt.Fprintf(&b, "\n        return %d;\n    end if;\n    ", (g+1)%12)
	}
	return b.String()
}

// update returns the statement that updates a row of the former service. The parameter of lists columns; the statement
// sets only those that differ.
func (p *plan) update(table string, of []column) string {
	if len(of) == 1 {
		return fmt.Sprintf("update {S}.%s set %s = %s, updated_at = n.updated_at where id = n.id;", table, of[0].name,
			p.value(of[0]))
	}
	changed := each(of, ",\n            ", func(c column) string {
		return fmt.Sprintf("case when %s then '%s = %s' end", c.differ(), c.name,
			strings.Replace(strings.ReplaceAll(p.value(c), "'", "''"), "n.", "($1).", 1))
	})
	return fmt.Sprintf("execute 'update {S quoted}.%s set ' || array_to_string(array[%s], ', ')\n"+
		"            || ', updated_at = ($1).updated_at where id = ($1).id' using n;", table, changed)
}

// refuse returns the statement that refuses the application's change of a column if the condition holds. hint is shown
// with the error.
func refuse(table, column, condition, hint string) string {
	return fmt.Sprintf("if new.%[2]s is distinct from old.%[2]s and %[3]s then\n        "+
		"perform {H}.{N}mirror_refuse('%[1]s', '%[2]s is', '%[4]s');\n    end if;\n    ", table, column, condition, hint)
}

// refusals returns the statements that refuse changes by the application of columns of the former service's table users
// that it must not write.
func (p *plan) refusals() string {
	var b strings.Builder
	check := func(column, condition string) {
		if p.there.Has("users", column) {
			b.WriteString(refuse("users", column, condition, "Use PUT /admin/users/{id}."))
		}
	}
	for _, c := range userColumns {
		switch condition := "new." + c.name + " is distinct from n." + c.name; {
		case c.carried || c.name == "id":
		case c.name == "email_change" || c.name == "phone_change":
			check(c.name, "coalesce(new."+c.name+", '') <> n."+c.name)
		case c.name == "email" || c.name == "phone": // the application may remove an address that is not ours
			check(c.name, condition+" and (new."+c.name+" is not null or old."+c.name+" is not distinct from n."+c.name+")")
		case c.name == "last_sign_in_at" && p.days:
			check(c.name, day("new."+c.name)+" is distinct from "+day("n."+c.name))
		default:
			check(c.name, condition)
		}
	}
	for _, c := range unwritten {
		check(c, map[bool]string{true: "new." + c + " <> ''", false: "true"}[c == "encrypted_password"])
	}
	for _, c := range tokens {
		check(c, "new."+c+" <> ''")
	}
	return b.String()
}

func (p *plan) rowRefusals(t rows) string {
	const hint = "Use POST /admin/users."
	var b strings.Builder
	for _, c := range p.have(t.there, t.columns) {
		b.WriteString(refuse(t.there, c.name, strings.ReplaceAll(c.differ(), "o."+c.name, "new."+c.name), hint))
	}
	for _, c := range t.own {
		b.WriteString(refuse(t.there, c, "new."+c+" is not null", hint))
	}
	return b.String()
}

const firstApp = `case when n.is_anonymous then '{}' else (select coalesce(jsonb_object_agg(e.key, e.value), '{}')
            from jsonb_each(n.raw_app_meta_data) e where e.key in ('provider', 'providers')) end`

// fill replaces the placeholders in the text of an SQL function, such as {S}, which stands for the name of the former
// service's schema.
func (p *plan) fill(text string) string {
	list := p.have("users", userColumns)
	// A new user is inserted with the columns in first. What was proven or granted is written by updates afterwards:
	// the confirmations (group 5), and a pending address, a ban, a deletion, and the times of mails and sign-ins
	// (groups from 8 on).
	first := slices.DeleteFunc(slices.Clone(list), func(c column) bool { return c.group == 5 || c.group > 7 })
	blank := slices.DeleteFunc(append([]string{"email_change"}, tokens...),
		func(c string) bool { return !p.there.Has("users", c) })
	var repairs, drops, roles []string
	for _, t := range p.tables() {
		drops = append(drops, fmt.Sprintf("when '%s' then delete from {S}.%s where id = row_id;", t.there, t.there))
		repairs = append(repairs, fmt.Sprintf(`perform from {H}.{N}%[1]s u where u.user_id = any(live) for no key update;
    perform {H}.{N}mirror_prune_%[3]s(live, array(select u.id from {H}.{N}%[1]s u where u.user_id = any(live) and %[4]s));
    perform {H}.{N}mirror_%[2]s(u.id, u.user_id) from {H}.{N}%[1]s u where u.user_id = any(live) and %[4]s;`,
			t.here, t.row, t.there, t.mirrored))
	}
	for _, r := range p.adminRoles {
		roles = append(roles, literal(r))
	}
	providers := "u.provider"
	if len(p.custom) > 0 {
		providers = "case u.provider"
		for _, there := range slices.Sorted(maps.Keys(p.custom)) {
			providers += " when " + literal(p.custom[there]) + " then " + literal(there)
		}
		providers += " else u.provider end"
	}
	text = strings.NewReplacer(
		"{users names}", each(first, ", ", name)+", updated_at",
		"{users first}", each(first, ", ", func(c column) string {
			if c.name == "raw_app_meta_data" {
				return firstApp
			}
			return "n." + c.name
		})+", n.updated_at",
		"{blank tokens}", strings.Join(blank, ", "), "{blanks}", strings.Repeat("'', ", len(blank)-1)+"''",
		"{groups}", p.groups(), "{refusals}", p.refusals(), "{users image}", p.image("users", list),
		"{row repairs}", strings.Join(repairs, "\n    "), "{drops}", strings.Join(drops, "\n    "),
		"{first app}", firstApp, "{admin roles}", "array["+strings.Join(roles, ", ")+"]::text[]").Replace(text)
	return strings.NewReplacer("{provider}", providers,
		"{S quoted}", strings.ReplaceAll(ident(p.there.Name), "'", "''"), "{S}", ident(p.there.Name),
		"{S text}", literal(p.there.Name), "{H}", ident(p.here), "{N}", p.ns, "{R literal}", literal(p.role)+"::name",
		"{user_deleted}", fmt.Sprint(int(store.ActionUserDeleted)), "{user_banned}", fmt.Sprint(int(store.ActionUserBanned)),
		"{user_unbanned}", fmt.Sprint(int(store.ActionUserUnbanned)),
		"{user_role_changed}", fmt.Sprint(int(store.ActionUserRoleChanged))).Replace(text)
}

// functions returns all functions of the mirror in the order in which they must be made.
func (p *plan) functions() (list []function) {
	texts := []string{userFunctions}
	for _, t := range p.tables() {
		of := p.have(t.there, t.columns)
		texts = append(texts, strings.NewReplacer("{row}", t.row, "{there}", t.there, "{here}", t.here,
			"{names}", each(of, ", ", name),
			"{values}", each(of, ", ", p.value),
			"{differ}", each(of, " or ", column.differ),
			"{update}", p.update(t.there, slices.DeleteFunc(slices.Clone(of), func(c column) bool {
				return c.name == "id" || c.name == "created_at"
			})),
			"{image}", p.image(t.here, of), "{mirrored}", t.mirrored, "{pruned}", t.pruned,
			"{unchanged}", each(of, " and ", func(c column) string {
				return "new." + c.name + " is not distinct from old." + c.name
			}), "{refusals}", p.rowRefusals(t)).Replace(rowFunctions))
	}
	for _, text := range texts {
		for _, one := range strings.Split(text, "--- ")[1:] {
			head, body, _ := strings.Cut(p.fill(one), "\n")
			owner, head, _ := strings.Cut(head, " ")
			signature, returns, _ := strings.Cut(head, " returns ")
			f := function{owner: p.role, returns: returns, body: body, config: []string{"search_path=pg_catalog, pg_temp"}}
			f.name, f.args, _ = strings.Cut(strings.TrimSuffix(signature, ")"), "(")
			f.name = p.ns + f.name
			switch owner {
			case "writer":
				f.owner, f.grantee = p.writer, p.role
				f.config[0] = "search_path=" + ident(p.there.Name) + ", pg_temp"
			case "shared":
				f.grantee = p.writer
			case "keeper":
				f.config = append(f.config, "lock_timeout=100ms")
			}
			list = append(list, f)
		}
	}
	return list
}

// trigger is a trigger of the mirror. when is the condition under which it fires; "": for every row.
type trigger struct{ name, table, event, when, function string }

// triggers returns all triggers of the mirror: first those on our tables, then those on the former service's tables.
func (p *plan) triggers() (list []trigger) {
	here := func(table string) string { return ident(p.here, p.ns+table) }
	distinct := func(columns []column, more string) string {
		var a, b []string
		for _, c := range columns {
			switch {
			case c.here == "":
			case c.name == "last_sign_in_at" && p.days:
				a, b = append(a, day("old."+c.here)), append(b, day("new."+c.here))
			default:
				a, b = append(a, "old."+c.here), append(b, "new."+c.here)
			}
		}
		return "(" + strings.Join(append(a, "old."+more), ", ") + ") is distinct from (" +
			strings.Join(append(b, "new."+more), ", ") + ")"
	}
	add := func(name, table, event, when, function string) {
		list = append(list, trigger{p.ns + "mirror_" + name, table, event, when, p.ns + function})
	}
	add("users", here("users"), "insert or delete", "", "mirror_to_user")
	add("users_update", here("users"), "update", distinct(p.have("users", userColumns), "password_hash"), "mirror_to_user")
	add("claims", here("one_time_tokens"), "insert or update", "new.kind = 'signup' and new.user_metadata is not null",
		"mirror_to_claim")
	for _, t := range p.tables() {
		of, function := p.have(t.there, t.columns), "mirror_to_"+t.row
		more := map[string]string{"sessions": "ended_at", "factors": "verified_at"}[t.here]
		if more == "" {
			more = "user_id"
		}
		add(t.here+"_insert", here(t.here), "insert", strings.ReplaceAll(t.mirrored, "u.", "new."), function)
		add(t.here+"_update", here(t.here), "update", distinct(of, more), function)
		add(t.here+"_delete", here(t.here), "delete", strings.ReplaceAll(t.mirrored, "u.", "old."), function)
	}
	for _, t := range append([]string{"users", "identities"}, "mfa_factors") {
		add("from", ident(p.there.Name, t), "insert or update or delete", "", "mirror_from_"+t)
		add("truncate", ident(p.there.Name, t), "truncate", "", "mirror_from_"+t)
	}
	return list
}

// create returns the statements that make all types, functions and triggers, in the order in which they must be
// executed.
func (p *plan) create() (list []string) {
	types := p.types()
	for _, name := range slices.Sorted(maps.Keys(types)) {
		list = append(list, fmt.Sprintf("create type %s as (%s)", ident(p.here, p.ns+name), types[name]),
			fmt.Sprintf("alter type %s owner to %s", ident(p.here, p.ns+name), ident(p.role)))
	}
	for _, f := range p.functions() {
		signature := ident(p.here, f.name) + "(" + f.args + ")"
		var set strings.Builder
		for _, c := range f.config {
			key, value, _ := strings.Cut(c, "=")
			if key == "lock_timeout" {
				value = literal(value)
			}
			set.WriteString(" set " + key + " = " + value)
		}
		list = append(list, fmt.Sprintf("create function %s returns %s language plpgsql security definer%s as $mirror$\n%s$mirror$",
			signature, f.returns, set.String(), f.body),
			// Change the owner before granting rights, since rights that the present owner has granted would pass to
			// the new owner.
			fmt.Sprintf("alter function %s owner to %s", signature, ident(f.owner)),
			fmt.Sprintf("revoke all on function %s from public", signature))
		if f.grantee != "" {
			list = append(list, fmt.Sprintf("grant execute on function %s to %s", signature, ident(f.grantee)))
		}
	}
	for _, t := range p.triggers() {
		list = append(list, t.create(p))
	}
	return list
}

func (t trigger) create(p *plan) string {
	kind, timing, level := "trigger", "after", "row"
	ours := strings.HasPrefix(t.table, ident(p.here)+".")
	switch {
	case ours:
		kind = "constraint trigger"
	case t.event == "truncate":
		timing, level = "before", "statement"
	}
	text := fmt.Sprintf("create %s %s %s %s on %s", kind, ident(t.name), timing, t.event, t.table)
	if ours {
		text += " deferrable initially deferred"
	}
	text += " for each " + level
	if t.when != "" && t.when != "true" {
		text += " when (" + t.when + ")"
	}
	return text + fmt.Sprintf(" execute function %s()", ident(p.here, t.function))
}
