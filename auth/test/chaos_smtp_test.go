package test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/shared/await"
	"gatehouse/shared/testdb"
)

// The mail server is down, hangs, refuses or drops the line for a while, then is well again. No sign-up
// notices; in the end each mail was delivered exactly once, or is marked failed for good reason.
func TestMailServerUnavailable(t *testing.T) {
	t.Parallel()
	url, smtp := testdb.Postgres(t), smtptest.Start(t, smtptest.Options{})
	d := start(t, append(environment(url, onSMTP(smtp)...), "AUTH_RATE_LIMIT_EMAIL_SENT=100000"))
	client := newCaller(t, 30*time.Second)
	n := 0
	signUps := func(t *testing.T, name string, many int) {
		t.Helper()
		for range many {
			n++
			begun := time.Now()
			r, err := client.do("POST", d.http+"/signup", "",
				fmt.Sprintf(`{"email":"%s%d@example.org","password":"correct horse"}`, name, n))
			if err != nil || r.status != 200 {
				t.Errorf("%s: %v %d %s", name, err, r.status, r.text)
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("%s: a sign-up waited %v for the mail server", name, took)
			}
		}
	}
	tried := func(what, like string, many int) {
		t.Helper()
		await.True(t, what, func() bool {
			return rows[int](t, url,
				`select count(*) from outbox o join users u on u.id = o.user_id where u.email like $1 || '%' and error <> ''`,
				like)[0] == many
		})
	}
	// soon lets the pauses between tries pass: the first is 5 s, the next ones double. A message that is being sent
	// is left alone: due_at is the end of a lease then, a minute after its beginning.
	soon := func() {
		rows[int](t, url, `update outbox set due_at = now() where state = 'pending' and error <> ''
			and (due_at < now() + interval '15 seconds' or due_at > now() + interval '30 minutes') returning 1`)
	}

	smtp.Down()
	signUps(t, "down", 20)
	tried("all are tried in vain", "down", 20)
	d.want(t, 200, "GET", "/readyz", "", "")
	smtp.Up()
	for _, step := range []smtptest.Step{smtptest.Connect, smtptest.Rcpt, smtptest.End} {
		smtp.Behave(smtptest.At(step, smtptest.Action{Reply: "451 4.3.0 later"}))
		signUps(t, "later"+string(step), 3)
		tried("tried in vain at "+string(step), "later"+string(step), 3)
	}
	for _, step := range []smtptest.Step{smtptest.Connect, smtptest.Data, smtptest.Text} {
		smtp.Behave(smtptest.At(step, smtptest.Action{Drop: true}))
		signUps(t, "drop"+string(step), 3)
		tried("tried in vain at "+string(step), "drop"+string(step), 3)
	}
	rows[int](t, url,
		// none of them is to be refused
		`update outbox set due_at = now() + interval '1 hour' where state = 'pending' returning 1`)
	smtp.Behave(smtptest.At(smtptest.Rcpt, smtptest.Action{Reply: "550 5.1.1 no such user"}))
	signUps(t, "refused", 4)
	await.True(t, "the refused are marked failed, and can be sent again until they expire", func() bool {
		return rows[int](t, url,
			`select count(*) from outbox o join users u on u.id = o.user_id where u.email like 'refused%' and state = 'failed' and error like '%no such user%' and payload is not null`)[0] == 4
	})
	smtp.Behave(smtptest.At(smtptest.Data, smtptest.Action{Hang: true}))
	signUps(t, "hang", 12) // more than are sent side by side
	await.True(t, "as many hang as are sent side by side", func() bool {
		return rows[int](t, url,
			`select count(*) from outbox o join users u on u.id = o.user_id where u.email like 'hang%' and attempts > 0`)[0] >= 8
	})
	smtp.Down()
	smtp.Behave(nil)
	smtp.Up()
	await.True(t, "nothing waits", func() bool {
		soon()
		return rows[int](t, url, `select count(*) from outbox where state = 'pending'`)[0] == 0
	})
	got := map[string]int{}
	for _, m := range smtp.Mails() {
		got[strings.Trim(m.To, "<>")]++
	}
	for _, row := range rows[string](t, url,
		`select o.state || ' ' || u.email from outbox o join users u on u.id = o.user_id`) {
		state, email, _ := strings.Cut(row, " ")
		want, times := "sent", 1
		if strings.HasPrefix(email, "refused") {
			want, times = "failed", 0
		}
		if state != want || got[email] != times {
			t.Errorf("%s: %s, arrived %d times; want %s, %d", email, state, got[email], want, times)
		}
	}
	if len(got) != n-4 {
		t.Errorf("%d people got mail, want %d", len(got), n-4)
	}
}
