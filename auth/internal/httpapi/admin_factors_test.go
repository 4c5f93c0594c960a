package httpapi

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestAdminFactors(t *testing.T) {
	a := open(t)
	admin := a.service()
	mia := a.member("mia@example.org")
	path := "/admin/users/" + mia.User.ID + "/factors"
	a.do("GET "+path, nil, admin).is(200, "[]")
	e := a.enroll(mia, "app")
	a.pass(time.Second)
	p := a.enrollPhone(mia, "phone", "4915112345678")
	mia = a.verify(mia, e)
	var list []factorJSON
	if a.do("GET "+path, nil, admin).json(&list); len(list) != 2 || list[0].ID != e.ID ||
		list[0].Status != "verified" || list[1].ID != p.ID || list[1].Status != "unverified" {
		t.Errorf("%+v", list)
	}
	var u userJSON
	if a.do("GET /admin/users/"+mia.User.ID, nil, admin).json(&u); len(u.Factors) != 2 {
		t.Errorf("%+v", u.Factors)
	}
	a.do("GET /admin/users?email=mia@example.org", nil,
		admin).is(200, `{"users":[{*"is_anonymous":false}],"aud":"authenticated"}`)

	type m = map[string]any
	put := func(id string, body any) answer { t.Helper(); return a.do("PUT "+path+"/"+id, body, admin) }
	var f factorJSON
	if put(p.ID, m{"friendly_name": "mine", "phone": "+49 151 87654321"}).json(&f); f.FriendlyName != "mine" ||
		f.Phone != "4915187654321" {
		t.Errorf("%+v", f)
	}
	if put(e.ID, m{"phone": "4915112345678"}).json(&f); f.FriendlyName != "app" || f.Phone != "" {
		t.Errorf("%+v", f)
	}
	put(p.ID, m{"phone": "x"}).refused(400, "validation_failed", "Invalid phone number format (E.164 required)")
	put(p.ID, m{"friendly_name": strings.Repeat("x", 256)}).refused(400, "validation_failed", "*")
	put(p.ID, "[").refused(400, "bad_json", "*")
	put(p.ID, m{"friendly_name": "app"}).refused(422, "mfa_factor_name_conflict",
		`A factor with the friendly name "app" for this user already exists`)
	q := a.enrollPhone(mia, "third", "4915100000001")
	put(q.ID, m{"phone": "4915187654321"}).refused(422, "mfa_verified_factor_exists",
		"The user has another phone factor with this number")

	// A code that was sent to the number of before is of no use.
	ch := a.challenge(mia, p.ID)
	code := a.newest("4915187654321").Code
	put(p.ID, m{"phone": "4915112345678"}).is(200, "*")
	a.answerTo(mia, p.ID, ch.ID, code).refused(422, "mfa_factor_not_found", "*")

	// Deleting takes the level from the sessions.
	var gone factorJSON
	if a.do("DELETE "+path+"/"+e.ID, nil, admin).json(&gone); gone.ID != e.ID || gone.Status != "verified" {
		t.Errorf("%+v", gone)
	}
	a.refresh(mia).json(&mia)
	if got := amrOf(t, mia); got != "aal1 otp" {
		t.Error(got)
	}
	id := uuid.NewString()
	for _, method := range []string{"PUT", "DELETE"} {
		a.do(method+" "+path+"/"+e.ID, m{}, admin).refused(404, "mfa_factor_not_found", "Factor not found")
		a.do(method+" "+path+"/x", m{}, admin).refused(404, "validation_failed", "factor_id must be an UUID")
		a.do(method+" /admin/users/x/factors/"+id, m{}, admin).refused(404, "validation_failed",
			"user_id must be an UUID")
		a.do(method+" /admin/users/"+id+"/factors/"+id, m{}, admin).refused(404, "user_not_found", "User not found")
	}
	a.do("GET /admin/users/x/factors", nil, admin).refused(404, "validation_failed", "user_id must be an UUID")
	a.do("GET /admin/users/"+id+"/factors", nil, admin).refused(404, "user_not_found", "User not found")
	log := a.do("GET /admin/audit", nil, admin).body
	for _, action := range []string{"factor_deleted", "factor_updated"} {
		if !strings.Contains(log, `"`+action+`"`) {
			t.Errorf("no %s in %s", action, log)
		}
	}
}
