package test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/fakeidp"
	"gatehouse/shared/testdb"
)

// recordEvents records what triggers of an application on the tables there can see: each statement on a row, with the
// columns that an INSERT fills, the provider among them, or that an UPDATE sets, = before one that keeps its
// value. Times of writing, hashes, tokens and secrets are left out.
const recordEvents = `
create table app.events (n bigint generated always as identity, id uuid, relation text, what text);
create table app.unseen as select unnest('{id,user_id,instance_id,plan,created_at,updated_at,confirmed_at,
	encrypted_password,secret,confirmation_token,recovery_token,email_change_token_new,email_change_token_current,phone_change_token,
	reauthentication_token}'::text[]) as name;
create function app.note() returns trigger language plpgsql security definer set search_path = '' as $$
declare
	was jsonb := to_jsonb(old);
	now jsonb := to_jsonb(new);
	own uuid := coalesce(now ->> 'user_id', was ->> 'user_id', now ->> 'id', was ->> 'id');
	kept text := '';
begin
	if tg_nargs = 0 then
		insert into app.events (id, relation, what) values (own, tg_table_name, lower(tg_op) || coalesce((
			select string_agg(' ' || key || case key when 'raw_app_meta_data' then ':' || (now -> key ->> 'provider') else '' end, ''
				order by key)
			from jsonb_each_text(now) where tg_op = 'INSERT' and coalesce(value, '') not in ('', 'false', '0', '{}')
				and key not in (select name from app.unseen) and not (key = 'email' and tg_table_name = 'identities')), ''));
		return null;
	end if;
	if was -> tg_argv[0] = now -> tg_argv[0] then
		kept := '=';
	end if;
	update app.events set what = what || ' ' || kept || tg_argv[0]
	where n = (select max(n) from app.events where id = own and relation = tg_table_name);
	return null; end $$;
do $$ declare c record; begin
	for c in select r.relname, a.attname from pg_class r join pg_attribute a on a.attrelid = r.oid
		where r.relnamespace = 'auth'::regnamespace and r.relname in ('users', 'identities', 'mfa_factors') and a.attnum > 0
			and not a.attisdropped and a.attgenerated = '' and a.attname not in (select name from app.unseen) loop
		execute format('create trigger note_%s after update of %I on auth.%I for each row execute function app.note(%L)',
			c.attname, c.attname, c.relname, c.attname);
	end loop;
	foreach c.relname in array array['users', 'identities', 'mfa_factors'] loop
		execute format('create trigger note after insert or update or delete on auth.%I for each row execute function app.note()',
			c.relname);
	end loop;
end $$`

// seen are the statements of one request there on the rows of one user, by table, separated by |.
type seen struct{ users, identities, factors string }

// groups are the columns that one statement here writes, in the order of the statements.
var groups = []string{"email", "phone", "is_anonymous", "aud role", "email_confirmed_at phone_confirmed_at",
	"raw_app_meta_data", "raw_user_meta_data", "email_change phone_change", "banned_until deleted_at",
	"confirmation_sent_at email_change_sent_at invited_at phone_change_sent_at reauthentication_sent_at recovery_sent_at",
	"identity_data last_sign_in_at provider_id"}

// differences are what a trigger there sees otherwise with a mirror, as docs/differences.md lists it with the reasons.
var differences = []string{"statements that change nothing", "a new user", "several statements of a request",
	"`sub`, addresses and `*_verified` in metadata and identity", "`email_change_confirm_status`", "second factors",
	"`last_sign_in_at` of an identity", "the link of an invitation", "soft deletion"}

// expected returns what is seen here in place of what is seen there. In there, + marks a column that is written here
// alone, and - one that is written there alone.
func expected(there string) string {
	var out, all []string
	for statement := range strings.SplitSeq(there, "|") {
		verb, columns, _ := strings.Cut(statement, " ")
		list := slices.DeleteFunc(strings.Fields(columns), func(c string) bool { return strings.ContainsAny(c[:1], "=-") })
		for i := range list {
			list[i] = strings.TrimPrefix(list[i], "+")
		}
		switch {
		case verb == "update" && strings.HasPrefix(there, "insert"):
			for _, c := range list {
				if c == "role" {
					out[0] += " role"
				} else if !strings.HasSuffix(c, "_meta_data") {
					all = append(all, c)
				}
			}
		case verb == "update":
			all = append(all, list...)
		default:
			out = append(out, strings.TrimSpace(verb+" "+strings.Join(list, " ")))
		}
	}
	for _, g := range groups {
		other := func(c string) bool { return !slices.Contains(all, c) }
		if list := slices.DeleteFunc(strings.Fields(g), other); len(list) > 0 {
			out = append(out, "update "+strings.Join(list, " "))
		}
	}
	return strings.Join(out, "|")
}

// step is a request, and what the replaced service does in it.
type step struct {
	do    func()
	there seen
}

// ways makes and changes users in every way that is on.
type ways struct {
	t       *testing.T
	d       *tuned
	idp     *fakeidp.Server
	service string // a token of an administrator
	// user is the id of the user of the present way; the others are what was last issued to a user.
	user, access, refresh, link, linkKind string
}

// way is what happens to the user with an address or number.
type way struct {
	name, who string
	steps     []step
}

// waysToChange makes and changes users: triggers of the application see what they saw before, but for the differences.
func waysToChange(t *testing.T, d *tuned, idp *fakeidp.Server, settings []string) {
	page := document(t, "docs/differences.md")
	for _, one := range differences {
		if !strings.Contains(page, "\n| "+one+" |") {
			t.Errorf("docs/differences.md does not list what differs: %s", one)
		}
	}
	w := &ways{t: t, d: d, idp: idp, service: d.admin(t, "service_role")}
	autoconfirmed := func(body string) func() {
		return func() {
			auto := start(t, append(settings, "AUTH_MAILER_AUTOCONFIRM=true"))
			auto.want(t, 200, "POST", "/signup", "", body)
			if err := auto.Stop(20 * time.Second); err != nil { // it would send mails of d's to its own mailbox
				t.Error(err)
			}
		}
	}
	for _, way := range append(w.signUps(autoconfirmed), w.changes()...) {
		w.walk(way)
	}
}

// walk takes the steps of a way, and compares what the application has seen of each.
func (w *ways) walk(way way) {
	find := func() string {
		return testdb.One[string](w.t, w.d.database, `select coalesce((select id::text from gatehouse.users
			where $1 in (email, phone, new_email)), '')`, way.who)
	}
	w.user = find()
	w.d.inbox(w.t, "DELETE", "/messages") // an older mail to the address has another code
	for i, s := range way.steps {
		if s.do(); w.user == "" {
			w.user = find()
		}
		for table, there := range map[string]string{"users": s.there.users, "identities": s.there.identities,
			"mfa_factors": s.there.factors} {
			got := testdb.One[string](w.t, w.d.database, `with d as (
					delete from app.events where id::text = $1 and relation = $2 returning n, what)
				select coalesce(string_agg(what, '|' order by n), '') from d where what <> 'update'`, w.user, table)
			if want := expected(there); got != want {
				w.t.Errorf("%s, step %d, %s:\n seen %s\n want %s", way.name, i+1, table, got, want)
			}
		}
		// A profile that is made by a trigger after the INSERT has the metadata of the sign-up.
		if n := testdb.One[int](w.t, w.d.database, `select count(*) from app.profiles where id::text = $1 and name = 'Mia'`,
			w.user); n != 1 && !strings.HasSuffix(way.name, "deletion") {
			w.t.Errorf("%s, step %d: %d profiles", way.name, i+1, n)
		}
	}
}
