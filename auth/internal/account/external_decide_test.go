package account

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/store"
)

var (
	mia = uuid.MustParse("00000000-0000-4000-8000-00000000000a")
	tom = uuid.MustParse("00000000-0000-4000-8000-00000000000b")
)

func told(list ...string) (all []provider.Email) {
	for _, s := range list {
		e := provider.Email{Address: s[1:], Verified: s[0] == '+' || s[0] == '*', Primary: s[0] == '*' || s[0] == '!'}
		all = append(all, e)
	}
	return all
}

// Of addresses: * is primary and verified, ! primary and not verified, + verified, - neither.
func TestJudgeAddresses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		told []string
		best string
		ok   bool
	}{
		{nil, "", false},
		{[]string{"*a@x.org", "+b@x.org"}, "a@x.org", true},
		{[]string{"+b@x.org", "!a@x.org", "+c@x.org"}, "b@x.org", true},
		{[]string{"-b@x.org", "!a@x.org"}, "a@x.org", false},
		{[]string{"-b@x.org", "-a@x.org"}, "a@x.org", false},
		{[]string{"*no address", "-b@x.org"}, "b@x.org", false},
		{[]string{"*a@x.org\x00"}, "", false},
		{[]string{"-a@x.org", "*a@x.org"}, "a@x.org", true},
	} {
		a := judgeAddresses(told(c.told...))
		if a.best != c.best || a.bestVerified() != c.ok {
			t.Errorf("%q: %+v, want %q verified %t", c.told, a, c.best, c.ok)
		}
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	const a, b = "a@x.org", "b@x.org"
	by := func(u uuid.UUID, how store.How, email string) store.Match {
		return store.Match{User: u, How: how, Email: email}
	}
	for name, c := range map[string]struct {
		told  []string
		found []store.Match
		want  decision
	}{
		"nobody, verified":                              {[]string{"*" + a}, nil, decision{outcome: create, email: a, free: true}},
		"nobody, unverified":                            {[]string{"!" + a}, nil, decision{outcome: create, email: a, free: true}},
		"nobody, no address":                            {nil, nil, decision{outcome: create, free: true}},
		"the identity is known":                         {[]string{"*" + a}, []store.Match{by(mia, store.BySubject, "")}, decision{outcome: exists, user: mia, free: true}},
		"known, and its address is another's":           {[]string{"*" + a}, []store.Match{by(mia, store.BySubject, ""), by(tom, store.ByConfirmed, a)}, decision{outcome: exists, user: mia}},
		"known, and its address is its own":             {[]string{"*" + a}, []store.Match{by(mia, store.BySubject, ""), by(mia, store.ByConfirmed, a)}, decision{outcome: exists, user: mia, free: true}},
		"an unverified address never leads":             {[]string{"!" + a}, []store.Match{by(mia, store.ByConfirmed, a)}, decision{outcome: create}},
		"nor one beside a verified one":                 {[]string{"*" + a, "-" + b}, []store.Match{by(mia, store.ByConfirmed, b)}, decision{outcome: create, email: a, free: true}},
		"a confirmed account":                           {[]string{"*" + a}, []store.Match{by(mia, store.ByConfirmed, a)}, decision{outcome: link, user: mia, free: true}},
		"by a verified address that is not the primary": {[]string{"*" + a, "+" + b}, []store.Match{by(mia, store.ByConfirmed, b)}, decision{outcome: link, user: mia, free: true}},
		"by another provider's identity":                {[]string{"*" + a}, []store.Match{by(mia, store.ByIdentity, a)}, decision{outcome: link, user: mia, free: true}},
		"both are the same user":                        {[]string{"*" + a}, []store.Match{by(mia, store.ByConfirmed, a), by(mia, store.ByIdentity, a)}, decision{outcome: link, user: mia, free: true}},
		"an unconfirmed account":                        {[]string{"*" + a}, []store.Match{by(mia, store.ByUnconfirmed, a)}, decision{outcome: link, user: mia, free: true}},
		"a proven one before an unconfirmed one":        {[]string{"*" + a}, []store.Match{by(mia, store.ByUnconfirmed, a), by(tom, store.ByIdentity, a)}, decision{outcome: link, user: tom}},
		"two unconfirmed ones: the primary's":           {[]string{"*" + a, "+" + b}, []store.Match{by(mia, store.ByUnconfirmed, b), by(tom, store.ByUnconfirmed, a)}, decision{outcome: link, user: tom, free: true}},
		"two confirmed ones":                            {[]string{"*" + a, "+" + b}, []store.Match{by(mia, store.ByConfirmed, b), by(tom, store.ByConfirmed, a)}, decision{outcome: multiple}},
		"an account and another's identity":             {[]string{"*" + a}, []store.Match{by(mia, store.ByConfirmed, a), by(tom, store.ByIdentity, a)}, decision{outcome: multiple}},
	} {
		if got := decide(c.found, judgeAddresses(told(c.told...))); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestSettle(t *testing.T) {
	t.Parallel()
	const a, b = "a@x.org", "b@x.org"
	now := time.Now()
	phone := store.User{Email: a, PhoneConfirmedAt: now}
	made := decision{outcome: create, free: true}
	for name, c := range map[string]struct {
		d     decision
		u     store.User
		told  []string
		rules rules
		want  settlement
	}{
		"new, verified":                        {made, store.User{Email: a}, []string{"*" + a}, rules{}, settlement{confirm: true}},
		"new, unverified":                      {made, store.User{Email: a}, []string{"!" + a}, rules{}, settlement{letter: true, refuse: true}},
		"new, unverified, let in":              {made, store.User{Email: a}, []string{"!" + a}, rules{allowUnverified: true}, settlement{letter: true}},
		"new, unverified, autoconfirm":         {made, store.User{Email: a}, []string{"!" + a}, rules{autoconfirm: true}, settlement{confirm: true}},
		"new, the address was not his to take": {decision{outcome: create}, store.User{}, []string{"!" + a}, rules{}, settlement{refuse: true}},
		"the same, none needed":                {decision{outcome: create}, store.User{}, []string{"!" + a}, rules{optional: true}, settlement{}},
		"new, no address, none needed":         {made, store.User{}, nil, rules{optional: true}, settlement{}},
		"confirmed":                            {decision{outcome: exists, user: mia}, store.User{Email: a, EmailConfirmedAt: now}, []string{"!" + b}, rules{}, settlement{}},
		"another address than the proven one":  {decision{outcome: exists, user: mia}, store.User{Email: a}, []string{"*" + b}, rules{}, settlement{letter: true, refuse: true}},
		"known, proven now":                    {decision{outcome: exists, user: mia}, store.User{Email: a}, []string{"*" + a}, rules{}, settlement{confirm: true, claim: true}},
		"known, proven now, with a phone":      {decision{outcome: exists, user: mia}, phone, []string{"*" + a}, rules{}, settlement{confirm: true}},
		"an unconfirmed account is taken over": {decision{outcome: link, user: mia}, phone, []string{"*" + a}, rules{}, settlement{confirm: true, claim: true}},
		"without address, adopts a free one":   {decision{outcome: exists, user: mia, free: true}, store.User{}, []string{"*" + a}, rules{}, settlement{adopt: a, confirm: true}},
		"without address, another's":           {decision{outcome: exists, user: mia}, store.User{}, []string{"*" + a}, rules{}, settlement{refuse: true}},
		"without address, an unverified one":   {decision{outcome: exists, user: mia, free: true}, store.User{}, []string{"!" + a}, rules{}, settlement{refuse: true}},
		"by phone, without address":            {decision{outcome: exists, user: mia}, store.User{PhoneConfirmedAt: now}, nil, rules{}, settlement{}},
		"autoconfirm links nobody":             {decision{outcome: link, user: mia}, store.User{Email: b}, []string{"*" + a, "!" + b}, rules{autoconfirm: true}, settlement{letter: true, refuse: true}},
	} {
		got := settle(c.d, c.u, judgeAddresses(told(c.told...)), c.rules)
		if d := cmp.Diff(c.want, got, cmp.AllowUnexported(settlement{})); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}
