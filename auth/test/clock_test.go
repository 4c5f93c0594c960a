package test

import (
	"context"
	"encoding/base32"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/auth/internal/token"
	"gatehouse/auth/internal/totp"
	"gatehouse/auth/internal/webauthn/webauthntest"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// Two replicas, one with a clock ten minutes ahead and one ten minutes behind, judge everything by PostgreSQL's time,
// with keys of the store and with those of AUTH_JWT_KEYS.
func TestClocks(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the daemon with another clock")
	}
	t.Parallel()
	program := shiftedProgram(t)
	key, err := token.Generate(token.ES256)
	must.Succeed(t, err)
	jwk, err := key.PrivateJWK()
	must.Succeed(t, err)
	for name, setting := range map[string]string{"keys of the store": "AUTH_SITE_NAME=",
		"AUTH_JWT_KEYS": "AUTH_JWT_KEYS=[" + string(jwk) + "]"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testClocks(t, program, setting)
		})
	}
}

// clocks are the two replicas.
type clocks struct {
	t             *testing.T
	url           string
	ahead, behind *shiftedInstance
	mails         *sentMails
}

func testClocks(t *testing.T, program, setting string) {
	smtp := smtptest.Start(t, smtptest.Options{})
	c := &clocks{t: t, url: testdb.Postgres(t), mails: newSentMails(smtp)}
	env := append(environment(c.url, setting, "AUTH_JWT_EXP="+strconv.Itoa(clockTokenLife), "AUTH_MAILER_OTP_EXP=300",
		"AUTH_SMTP_MAX_FREQUENCY=100s", "AUTH_MFA_TOTP_ENROLL_ENABLED=true", "AUTH_SECURITY_REFRESH_TOKEN_REUSE_INTERVAL=60",
		"AUTH_RATE_LIMIT_EMAIL_SENT=8", "AUTH_PASSKEY_ENABLED=true", "AUTH_WEBAUTHN_RP_ID=localhost",
		"AUTH_WEBAUTHN_RP_DISPLAY_NAME=Shop", "AUTH_WEBAUTHN_RP_ORIGINS="+passkeySite), onSMTP(smtp)...)
	c.ahead = startShifted(t, program, 10*time.Minute, env)
	c.behind = startShifted(t, program, -10*time.Minute, env)
	for _, d := range []*shiftedInstance{c.ahead, c.behind} {
		if !strings.Contains(d.log.text(), "machine's clock differs from the database's") {
			t.Error("no warning of the clock")
		}
	}
	session := c.signUp("ann@example.org")
	c.tokens()
	c.refreshes(session)
	c.passkeys()
	c.factors()
	c.bans()
	c.budgets()
	c.steps()
}

// signUp requests a mail of the replica that is behind and redeems its code at the other one: the link lives for five
// minutes. The pause between two mails holds at both.
func (c *clocks) signUp(email string) answer {
	c.t.Helper()
	c.behind.want(c.t, 200, "POST", "/signup", "", `{"email":"`+email+`","password":"correct horse"}`)
	c.ahead.want(c.t, 429, "POST", "/resend", "", `{"type":"signup","email":"`+email+`"}`)
	await.True(c.t, "a mail", func() bool { return len(c.mails.to(c.t, email)) > 0 })
	return c.ahead.want(c.t, 200, "POST", "/verify", "",
		`{"type":"signup","token_hash":"`+c.mails.to(c.t, email)[0].token+`"}`)
}

// tokens of either replica are good at the other at once, and dead at both at their exp.
func (c *clocks) tokens() {
	c.t.Helper()
	ends := map[string]int64{}
	for from, to := range map[*shiftedInstance]*shiftedInstance{c.ahead: c.behind, c.behind: c.ahead} {
		before := c.now()
		access := c.signIn(from)
		to.want(c.t, 200, "GET", "/user", access, "")
		_, claims := tokenParts(c.t, access)
		iat, exp := int64(claims["iat"].(float64)), int64(claims["exp"].(float64))
		if iat < before.Unix()-1 || iat > c.now().Unix()+1 || exp != iat+clockTokenLife {
			c.t.Errorf("iat %d, exp %d at %s", iat, exp, before)
		}
		ends[access] = exp
	}
	for access, exp := range ends {
		await.True(c.t, "the end of a token", func() bool {
			dead := 0
			for _, d := range []*shiftedInstance{c.ahead, c.behind} {
				a, err := call("GET", d.http+"/user", access, "")
				if now := c.now(); err == nil && a.status != 200 && now.Unix() < exp-1 {
					c.t.Errorf("%d %s before its exp, at %s", a.status, a.text, now)
				} else if err == nil && a.status != 200 {
					dead++
				}
			}
			return dead == 2
		})
	}
}

// clockTokenLife is AUTH_JWT_EXP of the replicas, seconds.
const clockTokenLife = 10

// signIn returns an access token.
func (c *clocks) signIn(d *shiftedInstance) string {
	c.t.Helper()
	return d.want(c.t, 200, "POST", "/token?grant_type=password", "", credentials("ann@example.org", horse)).
		str("access_token")
}

// refreshes: a token that was rotated a moment ago is good for the reuse interval at the other replica.
func (c *clocks) refreshes(session answer) {
	c.t.Helper()
	old := session.str("refresh_token")
	next := c.ahead.want(c.t, 200, "POST", refreshPath, "", refreshing(old)).str("refresh_token")
	if again := c.behind.want(c.t, 200, "POST", refreshPath, "", refreshing(old)).str("refresh_token"); again != next {
		c.t.Errorf("within the reuse interval the answer was another token")
	}
	c.behind.want(c.t, 200, "POST", refreshPath, "", refreshing(next))
}

// factors: codes of an authenticator app go by PostgreSQL's time.
func (c *clocks) factors() {
	c.t.Helper()
	access := c.signIn(c.ahead)
	enrolled := c.ahead.want(c.t, 200, "POST", "/factors", access, `{"factor_type":"totp"}`)
	secret, _ := enrolled.body["totp"].(map[string]any)["secret"].(string)
	key, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(secret)
	must.Succeed(c.t, err)
	factor := "/factors/" + enrolled.str("id")
	challenge := c.behind.want(c.t, 200, "POST", factor+"/challenge", access, "").str("id")
	c.ahead.want(c.t, 200, "POST", factor+"/verify", access,
		fmt.Sprintf(`{"challenge_id":%q,"code":%q}`, challenge, totp.Code(key, totp.Step(c.now()))))
}

// passkeys: a challenge of either replica is good at the other one, and expires by PostgreSQL's time, as its id says.
func (c *clocks) passkeys() {
	c.t.Helper()
	device := new(webauthntest.Authenticator)
	access := c.signIn(c.ahead)
	c.ahead.want(c.t, 200, "POST", "/passkeys/registration/verify", access,
		passkeyAnswer(c.t, c.behind.instance, access, passkeySite, device))
	for from, to := range map[*shiftedInstance]*shiftedInstance{c.ahead: c.behind, c.behind: c.ahead} {
		before := c.now()
		begun := from.want(c.t, 200, "POST", "/passkeys/authentication/options", "", "")
		expires, err := strconv.ParseInt(begun.str("challenge_id")[:8], 16, 64)
		if least := before.Unix() + 300; err != nil || expires < least-1 || expires > c.now().Unix()+301 {
			c.t.Errorf("a challenge expires at %d (%v), want %d", expires, err, least)
		}
		to.want(c.t, 200, "POST", "/passkeys/authentication/verify", "", `{"challenge_id":"`+begun.str("challenge_id")+
			`","credential":`+assertion(c.t, device, begun.body["options"])+`}`)
	}
}

// budgets: of the eight mails an hour each takes seven and a half minutes to come back, at both replicas.
func (c *clocks) budgets() {
	c.t.Helper()
	status := 200
	for i := 0; status == 200 && i < 8; i++ {
		a, err := call("POST", c.behind.http+"/signup", "", credentials(fmt.Sprintf("bob%d@example.org", i), horse))
		if status = a.status; err != nil {
			c.t.Fatal(err)
		}
	}
	if status != 429 {
		c.t.Errorf("nine mails are sent: %d", status)
	}
	c.ahead.want(c.t, 429, "POST", "/signup", "", credentials("eve@example.org", horse))
}

// bans for five minutes hold, whichever clock they were given by; the command's too.
func (c *clocks) bans() {
	c.t.Helper()
	c.behind.command(c.t, "admin", "ban", "ann@example.org", "5m")
	c.ahead.want(c.t, 400, "POST", "/token?grant_type=password", "", credentials("ann@example.org", horse))
	c.ahead.command(c.t, "admin", "unban", "ann@example.org")
	c.signIn(c.behind)
	if out := c.behind.command(c.t, "mail", "list"); !strings.Contains(out, "sent") {
		c.t.Errorf("mails:\n%s", out)
	}
}

// steps of a machine's clock by an hour, forth and back under load, change no answer.
func (c *clocks) steps() {
	c.t.Helper()
	ctx, stop := context.WithCancel(c.t.Context())
	var wg sync.WaitGroup
	var answers atomic.Int64
	wg.Go(func() {
		for ctx.Err() == nil {
			a, err := call("POST", c.ahead.http+"/token?grant_type=password", "", credentials("ann@example.org", horse))
			b, errNext := call("POST", c.ahead.http+refreshPath, "", refreshing(a.str("refresh_token")))
			user, errUser := call("GET", c.ahead.http+"/user", b.str("access_token"), "")
			if err := errors.Join(err, errNext, errUser); err != nil || a.status*b.status*user.status != 200*200*200 {
				c.t.Errorf("while the clock steps: %v, %s, %s, %s", err, a.text, b.text, user.text)
				return
			}
			answers.Add(1)
		}
	})
	for _, by := range []time.Duration{70 * time.Minute, -50 * time.Minute, 10 * time.Minute} {
		c.ahead.shift(c.t, by)
		until := answers.Load() + 20
		await.True(c.t, "answers", func() bool { return answers.Load() >= until || c.t.Failed() })
	}
	stop()
	wg.Wait()
}

// now is PostgreSQL's time.
func (c *clocks) now() time.Time {
	c.t.Helper()
	return rows[time.Time](c.t, c.url, `select clock_timestamp()`)[0]
}
