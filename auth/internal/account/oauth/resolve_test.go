package oauth

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
		a := judgeEmails(told(c.told...))
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
		want  accountDecision
	}{
		"nobody, verified": {[]string{"*" + a}, nil,
			accountDecision{resolution: userCreated, email: a, free: true}},
		"nobody, unverified": {[]string{"!" + a}, nil,
			accountDecision{resolution: userCreated, email: a, free: true}},
		"nobody, no address": {nil, nil, accountDecision{resolution: userCreated, free: true}},
		"the identity is known": {[]string{"*" + a}, []store.Match{by(mia, store.BySubject, "")},
			accountDecision{resolution: userKnown, user: mia, free: true}},
		"known, and its address is another's": {[]string{"*" + a},
			[]store.Match{by(mia, store.BySubject, ""), by(tom, store.ByConfirmed, a)},
			accountDecision{resolution: userKnown, user: mia}},
		"known, and its address is its own": {[]string{"*" + a},
			[]store.Match{by(mia, store.BySubject, ""), by(mia, store.ByConfirmed, a)},
			accountDecision{resolution: userKnown, user: mia, free: true}},
		"an unverified address never leads": {[]string{"!" + a}, []store.Match{by(mia, store.ByConfirmed, a)},
			accountDecision{resolution: userCreated}},
		"nor one beside a verified one": {[]string{"*" + a, "-" + b},
			[]store.Match{by(mia, store.ByConfirmed, b)},
			accountDecision{resolution: userCreated, email: a, free: true}},
		"a confirmed account": {[]string{"*" + a}, []store.Match{by(mia, store.ByConfirmed, a)},
			accountDecision{resolution: userLinked, user: mia, free: true}},
		"by a verified address that is not the primary": {[]string{"*" + a, "+" + b},
			[]store.Match{by(mia, store.ByConfirmed, b)},
			accountDecision{resolution: userLinked, user: mia, free: true}},
		"by another provider's identity": {[]string{"*" + a}, []store.Match{by(mia, store.ByIdentity, a)},
			accountDecision{resolution: userLinked, user: mia, free: true}},
		"both are the same user": {[]string{"*" + a}, []store.Match{by(mia, store.ByConfirmed, a),
			by(mia, store.ByIdentity, a)}, accountDecision{resolution: userLinked, user: mia, free: true}},
		"an unconfirmed account": {[]string{"*" + a}, []store.Match{by(mia, store.ByUnconfirmed, a)},
			accountDecision{resolution: userLinked, user: mia, free: true}},
		"an unproven account": {[]string{"*" + a}, []store.Match{by(mia, store.ByUnproven, a)},
			accountDecision{resolution: userLinked, user: mia, free: true}},
		"a proven one before an unproven one": {[]string{"*" + a}, []store.Match{by(tom, store.ByIdentity, a),
			by(mia, store.ByUnproven, a)}, accountDecision{resolution: userLinked, user: tom}},
		"an unproven one with a proven number": {[]string{"*" + a}, []store.Match{by(mia, store.ByLeaving, a)},
			accountDecision{resolution: userCreated, email: a, free: true, yields: mia}},
		"the same, and the address is not verified": {[]string{"!" + a}, []store.Match{by(mia, store.ByLeaving, a)},
			accountDecision{resolution: userCreated}},
		"the same, and the address is not the primary": {[]string{"*" + a, "+" + b},
			[]store.Match{by(mia, store.ByLeaving, b)}, accountDecision{resolution: userCreated, email: a, free: true}},
		"the same, and another user is found": {[]string{"*" + a, "+" + b}, []store.Match{by(tom, store.ByConfirmed, b),
			by(mia, store.ByLeaving, a)}, accountDecision{resolution: userLinked, user: tom}},
		"the same, and the identity is known": {[]string{"*" + a}, []store.Match{by(tom, store.BySubject, ""),
			by(mia, store.ByLeaving, a)}, accountDecision{resolution: userKnown, user: tom}},
		"the same, and it is the identity's user": {[]string{"*" + a}, []store.Match{by(mia, store.BySubject, ""),
			by(mia, store.ByLeaving, a)}, accountDecision{resolution: userKnown, user: mia, free: true}},
		"a proven one before an unconfirmed one": {[]string{"*" + a}, []store.Match{by(mia, store.ByUnconfirmed, a),
			by(tom, store.ByIdentity, a)}, accountDecision{resolution: userLinked, user: tom}},
		"two unconfirmed ones: the primary's": {[]string{"*" + a, "+" + b},
			[]store.Match{by(mia, store.ByUnconfirmed, b),
				by(tom, store.ByUnconfirmed, a)}, accountDecision{resolution: userLinked, user: tom, free: true}},
		"two confirmed ones": {[]string{"*" + a, "+" + b}, []store.Match{by(mia, store.ByConfirmed, b),
			by(tom, store.ByConfirmed, a)}, accountDecision{resolution: userAmbiguous}},
		"an account and another's identity": {[]string{"*" + a}, []store.Match{by(mia, store.ByConfirmed, a),
			by(tom, store.ByIdentity, a)}, accountDecision{resolution: userAmbiguous}},
	} {
		if got := resolveAccount(c.found, judgeEmails(told(c.told...))); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestReconcileEmail(t *testing.T) {
	t.Parallel()
	const a, b = "a@x.org", "b@x.org"
	now := time.Now()
	phone := store.User{Email: a, PhoneConfirmedAt: now}
	made := accountDecision{resolution: userCreated, free: true}
	for name, c := range map[string]struct {
		d     accountDecision
		u     store.User
		told  []string
		rules emailRules
		want  emailOutcome
	}{
		"new, verified": {made, store.User{Email: a}, []string{"*" + a}, emailRules{},
			emailOutcome{confirm: true}},
		"new, unverified": {made, store.User{Email: a}, []string{"!" + a}, emailRules{},
			emailOutcome{confirmByMail: true, refuse: true}},
		"new, unverified, let in": {made, store.User{Email: a}, []string{"!" + a},
			emailRules{allowUnverified: true}, emailOutcome{confirmByMail: true}},
		"new, unverified, autoconfirm": {made, store.User{Email: a}, []string{"!" + a}, emailRules{autoconfirm: true},
			emailOutcome{confirm: true, unproven: true}},
		"new, the address was not his to take": {accountDecision{resolution: userCreated}, store.User{},
			[]string{"!" + a}, emailRules{}, emailOutcome{refuse: true}},
		"the same, none needed": {accountDecision{resolution: userCreated}, store.User{}, []string{"!" + a},
			emailRules{optional: true}, emailOutcome{}},
		"new, no address, none needed": {made, store.User{}, nil, emailRules{optional: true}, emailOutcome{}},
		"confirmed": {accountDecision{resolution: userKnown, user: mia},
			store.User{Email: a, EmailConfirmedAt: now}, []string{"!" + b}, emailRules{}, emailOutcome{}},
		"another address than the proven one": {accountDecision{resolution: userKnown, user: mia}, store.User{Email: a},
			[]string{"*" + b}, emailRules{}, emailOutcome{confirmByMail: true, refuse: true}},
		"known, proven now": {accountDecision{resolution: userKnown, user: mia}, store.User{Email: a},
			[]string{"*" + a}, emailRules{}, emailOutcome{confirm: true, claim: true}},
		"known, proven now, with a phone": {accountDecision{resolution: userKnown, user: mia}, phone, []string{"*" + a},
			emailRules{}, emailOutcome{confirm: true}},
		"an unconfirmed account is taken over": {accountDecision{resolution: userLinked, user: mia}, phone,
			[]string{"*" + a}, emailRules{}, emailOutcome{confirm: true, claim: true}},
		"without address, adopts a free one": {accountDecision{resolution: userKnown, user: mia, free: true},
			store.User{}, []string{"*" + a}, emailRules{}, emailOutcome{adopt: a, confirm: true}},
		"without address, another's": {accountDecision{resolution: userKnown, user: mia}, store.User{},
			[]string{"*" + a}, emailRules{}, emailOutcome{refuse: true}},
		"without address, an unverified one": {accountDecision{resolution: userKnown, user: mia, free: true},
			store.User{}, []string{"!" + a}, emailRules{}, emailOutcome{refuse: true}},
		"by phone, without address": {accountDecision{resolution: userKnown, user: mia},
			store.User{PhoneConfirmedAt: now}, nil, emailRules{}, emailOutcome{}},
		"an unproven account is claimed": {accountDecision{resolution: userLinked, user: mia},
			store.User{Email: a, EmailConfirmedAt: now, EmailUnproven: true}, []string{"*" + a}, emailRules{claim: true},
			emailOutcome{confirm: true, claim: true, live: true}},
		"an unproven account is shared": {accountDecision{resolution: userLinked, user: mia},
			store.User{Email: a, EmailConfirmedAt: now, EmailUnproven: true}, []string{"*" + a}, emailRules{},
			emailOutcome{confirm: true}},
		"unproven, and the provider has verified another": {accountDecision{resolution: userKnown, user: mia},
			store.User{Email: a, EmailConfirmedAt: now, EmailUnproven: true}, []string{"*" + b}, emailRules{claim: true},
			emailOutcome{}},
		"known, unproven, beside a proven number": {accountDecision{resolution: userKnown, user: mia},
			store.User{Email: a, EmailConfirmedAt: now, EmailUnproven: true, Phone: "491511", PhoneConfirmedAt: now},
			[]string{"*" + a}, emailRules{claim: true}, emailOutcome{confirm: true}},
		"autoconfirm links nobody": {accountDecision{resolution: userLinked, user: mia}, store.User{Email: b},
			[]string{"*" + a, "!" + b}, emailRules{autoconfirm: true}, emailOutcome{confirmByMail: true, refuse: true}},
	} {
		got := reconcileEmail(c.d, c.u, judgeEmails(told(c.told...)), c.rules)
		if d := cmp.Diff(c.want, got, cmp.AllowUnexported(emailOutcome{})); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}
