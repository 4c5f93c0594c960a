package httpapi

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
)

type outboxJSON struct {
	Messages []struct {
		ID        string
		Kind      string
		State     string
		UserID    string `json:"user_id"`
		Error     string
		Attempts  int
		CanResend bool `json:"can_resend"`
	}
	Pagination struct {
		Next string `json:"next_cursor"`
		More bool   `json:"has_more"`
	}
}

func TestAdmin_outbox(t *testing.T) {
	a := open(t)
	admin := a.service()
	mia, tom := a.member("mia@example.org"), a.member("tom@example.org")
	send := func(user, kind string, fail bool) uuid.UUID {
		t.Helper()
		a.pass(time.Second)
		id := uuid.New()
		b := a.db.Batch()
		b.InsertMessage(store.NewMessage{ID: id, User: uuid.MustParse(user), Channel: "email", Kind: kind,
			Payload: []byte("sealed"), At: a.clock(), ExpiresAt: a.clock().Add(time.Hour)})
		must.Succeed(t, b.Send(t.Context()))
		if fail {
			must.Succeed(t, a.db.FailMessage(t.Context(), id, a.clock(), "no such mailbox"))
		}
		return id
	}
	waiting := send(mia.User.ID, "recovery", false)
	failed := send(tom.User.ID, "email_changed_notification", true)
	useless := send(tom.User.ID, "recovery", true) // its token is gone
	list := func(query string) (o outboxJSON) {
		t.Helper()
		got := a.do("GET /admin/outbox"+query, nil, admin).json(&o)
		if strings.Contains(got.body, "sealed") || strings.Contains(got.body, "@example.org") {
			t.Errorf("%s", got.body)
		}
		return o
	}
	o := list("?state=failed")
	if len(o.Messages) != 2 || o.Messages[0].ID != useless.String() || o.Messages[0].CanResend ||
		o.Messages[1].ID != failed.String() || !o.Messages[1].CanResend || o.Messages[1].Error != "no such mailbox" ||
		o.Pagination.More || o.Pagination.Next != "" {
		t.Errorf("%+v", o)
	}
	if o = list("?state=sent"); len(o.Messages) != 0 {
		t.Errorf("%+v", o)
	}
	if o = list("?user_id=" + mia.User.ID + "&state=pending"); o.Messages[0].ID != waiting.String() ||
		!o.Messages[0].CanResend || o.Messages[0].UserID != mia.User.ID {
		t.Errorf("%+v", o)
	}
	var paged []string
	for query := "?limit=2"; ; query = "?limit=2&cursor=" + o.Pagination.Next {
		o = list(query)
		for _, m := range o.Messages {
			paged = append(paged, m.ID)
		}
		if !o.Pagination.More {
			break
		}
	}
	if all := list(""); len(paged) != len(all.Messages) || len(paged) != 5 || paged[0] != useless.String() ||
		paged[4] != all.Messages[4].ID {
		t.Errorf("pages %v, all %+v", paged, all)
	}
	refused := func(query string) {
		t.Helper()
		a.do("GET /admin/outbox"+query, nil, admin).refused(400, "validation_failed", "*")
	}
	refused("?state=posted")
	refused("?user_id=x")
	refused("?users=x")
	refused("?limit=0")
	refused("?cursor=x")

	resend := func(id string) answer {
		t.Helper()
		return a.do("POST /admin/outbox/"+id+"/resend", nil, admin)
	}
	resend(failed.String()).is(200, `{"id":"`+failed.String()+`",*"state":"pending","attempts":0,*"can_resend":true}`)
	resend(waiting.String()).is(200, "*")
	resend(useless.String()).refused(404, "not_found", "No such message*")
	resend(uuid.NewString()).refused(404, "not_found", "*")
	resend("x").refused(404, "validation_failed", "*")
}

func TestAdmin_endsSessions(t *testing.T) {
	a := open(t)
	admin := a.service()
	mia, tom := a.member("mia@example.org"), a.member("tom@example.org")
	var second grantJSON
	a.do("POST /token?grant_type=password", map[string]any{"email": "mia@example.org", "password": sesame}).json(&second)
	session := func(g grantJSON) string { return claimsOf(t, g.AccessToken)["session_id"].(string) }
	end := func(path string) answer {
		t.Helper()
		return a.do("DELETE /admin/users/"+path, nil, admin)
	}
	live := func(g grantJSON, want string) {
		t.Helper()
		if got := a.do("GET /user", nil, bearer(g.AccessToken)).Header.Get("X-Sb-Error-Code"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	end(tom.User.ID+"/sessions/"+session(mia)).refused(404, "session_not_found", "*")
	end(uuid.NewString()+"/sessions/"+session(mia)).refused(404, "user_not_found", "*")
	end(mia.User.ID+"/sessions/x").refused(404, "validation_failed", "*")
	end("x/sessions/"+session(mia)).refused(404, "validation_failed", "*")
	live(mia, "")
	end(mia.User.ID+"/sessions/"+session(mia)).is(204, "")
	end(mia.User.ID+"/sessions/"+session(mia)).is(204, "") // it has ended before
	live(mia, "session_not_found")
	live(second, "")
	end(mia.User.ID+"/sessions").is(204, "")
	live(second, "session_not_found")
	live(tom, "")
	end(uuid.NewString()+"/sessions").refused(404, "user_not_found", "*")
	end("x/sessions").refused(404, "validation_failed", "*")
	a.do("GET /admin/users/"+mia.User.ID+"/sessions", nil, admin).is(200,
		`[{*"ended_reason":"admin"},{*"ended_reason":"admin"}]`)

	rows, _, err := a.db.AuditLog(t.Context(), store.AuditFilter{Action: "session_ended", Limit: 10})
	if err != nil || len(rows) != 2 || rows[0].ActorRole != "service_role" ||
		!strings.Contains(string(rows[0].Traits), mia.User.ID) || strings.Contains(string(rows[0].Traits), "session_id") ||
		!strings.Contains(string(rows[1].Traits), session(mia)) {
		t.Errorf("%+v, %v", rows, err)
	}
}
