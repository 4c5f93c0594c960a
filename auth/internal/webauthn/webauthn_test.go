package webauthn_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/webauthn"
	"gatehouse/auth/internal/webauthn/webauthntest"
	"gatehouse/shared/must"
)

type vector struct {
	Name         string
	Registration struct {
		Challenge, ClientDataJSON, AttestationObject, CredentialID string
	}
	Authentication struct{ Challenge, ClientDataJSON, AuthenticatorData, Signature string }
}

func fromHex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	must.Succeed(t, err)
	return b
}

func vectors(t testing.TB) []vector {
	t.Helper()
	text, err := os.ReadFile("testdata/vectors.json")
	must.Succeed(t, err)
	var out []vector
	must.Succeed(t, json.Unmarshal(text, &out))
	return out
}

// message returns a credential's JSON; members are bytes, in base64url.
func message(id []byte, members map[string][]byte) []byte {
	response := map[string]string{}
	for name, value := range members {
		response[name] = webauthn.Encode(value)
	}
	out, err := json.Marshal(map[string]any{"id": webauthn.Encode(id), "rawId": webauthn.Encode(id),
		"type": "public-key", "response": response})
	if err != nil {
		panic(err)
	}
	return out
}

func (v *vector) registration(t testing.TB) ([]byte, *webauthn.Policy) {
	r := v.Registration
	return message(fromHex(t, r.CredentialID), map[string][]byte{"clientDataJSON": fromHex(t, r.ClientDataJSON),
		"attestationObject": fromHex(t, r.AttestationObject)}), policyOf(fromHex(t, r.Challenge))
}

func (v *vector) assertion(t testing.TB) ([]byte, *webauthn.Policy) {
	a := v.Authentication
	return message(fromHex(t, v.Registration.CredentialID), map[string][]byte{
		"clientDataJSON": fromHex(t, a.ClientDataJSON), "authenticatorData": fromHex(t, a.AuthenticatorData),
		"signature": fromHex(t, a.Signature)}), policyOf(fromHex(t, a.Challenge))
}

func policyOf(challenge []byte) *webauthn.Policy {
	return &webauthn.Policy{RPID: "example.org", Origins: []string{"https://example.org"},
		Challenges: [][]byte{bytes.Repeat([]byte{9}, 32), challenge}}
}

func TestClientData_errors(t *testing.T) {
	v := vectors(t)[0].Registration
	for data, want := range map[string]string{
		`{"type":5}`: "type has the wrong type",
		`{"type":"webauthn.create","crossOrigin":null}`: "crossOrigin has the wrong type",
		`{"topOrigin":{}}`:        "topOrigin has the wrong type",
		`{"type":"a","type":"a"}`: `JSON member given twice: "type"`,
		`{"type":"a"}`:            "type, challenge or origin is missing",
		`[]`:                      "not a JSON object",
		`{"type":"a"`:             "not valid JSON",
	} {
		_, err := webauthn.ParseRegistration(message([]byte{1}, map[string][]byte{"clientDataJSON": []byte(data),
			"attestationObject": fromHex(t, v.AttestationObject)}))
		if err == nil || !strings.HasSuffix(err.Error(), "clientDataJSON: "+want) {
			t.Errorf("%s: %v, want %q", data, err, want)
		}
	}
}

// The test vectors of Web Authentication Level 3, section 16.
func TestVectors(t *testing.T) {
	refused := map[string]webauthn.Failure{
		"none-es256-crossOrigin": webauthn.FailedCrossOrigin, "none-es256-topOrigin": webauthn.FailedCrossOrigin,
		"packed-es384": webauthn.FailedAlgorithm, "packed-es512": webauthn.FailedAlgorithm,
		"packed-ed448": webauthn.FailedAlgorithm,
	}
	accepted := 0
	for _, v := range vectors(t) {
		raw, policy := v.registration(t)
		r, err := webauthn.ParseRegistration(raw)
		if err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		c, err := r.Verify(policy)
		if want := refused[v.Name]; want != "" {
			if err != want {
				t.Errorf("%s: %v, want %v", v.Name, err, want)
			}
			continue
		}
		if err != nil || !bytes.Equal(c.ID, fromHex(t, v.Registration.CredentialID)) {
			t.Errorf("%s: registered %x, %v", v.Name, c.ID, err)
			continue
		}
		policy.RequireUV = true
		if _, err := r.Verify(policy); (err == nil) != c.UserVerified || err != nil &&
			err != webauthn.FailedUserVerification {
			t.Errorf("%s: UV required: %v, the user was verified: %v", v.Name, err, c.UserVerified)
		}
		raw, policy = v.assertion(t)
		a, err := webauthn.ParseAssertion(raw)
		if err == nil {
			err = a.Check(policy)
		}
		if err == nil {
			_, err = a.Verify(c)
		}
		if err != nil {
			t.Errorf("%s: assertion: %v", v.Name, err)
			continue
		}
		if policy.RequireUV = true; v.Name == "none-es256" && a.Check(policy) != webauthn.FailedUserVerification {
			t.Errorf("%s: accepted without UV", v.Name)
		}
		accepted++
	}
	if accepted != 10 {
		t.Errorf("%d vectors passed, want 10", accepted)
	}
}

const (
	rpID   = "app.test"
	origin = "https://login.app.test"
)

var challenge = bytes.Repeat([]byte{0xfb, 7}, 16)

func policy(uv bool) *webauthn.Policy {
	return &webauthn.Policy{RPID: rpID, Origins: []string{"https://app.test", origin}, Challenges: [][]byte{challenge},
		RequireUV: uv}
}

func creation() webauthn.CreationOptions {
	o := webauthn.Create(webauthn.RelyingParty{ID: rpID, Name: "App"}, webauthn.User{ID: webauthn.Encode([]byte("ann"))},
		webauthn.Selection{ResidentKey: "required", RequireResidentKey: true, UserVerification: "preferred"})
	o.Challenge = webauthn.Encode(challenge)
	return o
}

func request() webauthn.RequestOptions {
	return webauthn.RequestOptions{Challenge: webauthn.Encode(challenge), RPID: rpID}
}

func create(t testing.TB, a *webauthntest.Authenticator, changes ...webauthntest.Change) []byte {
	t.Helper()
	raw, err := a.Create(creation(), origin, changes...)
	must.Succeed(t, err)
	return raw
}

func get(t testing.TB, a *webauthntest.Authenticator, changes ...webauthntest.Change) []byte {
	t.Helper()
	raw, err := a.Get(request(), origin, changes...)
	must.Succeed(t, err)
	return raw
}

func register(raw []byte, p *webauthn.Policy) (webauthn.Credential, error) {
	r, err := webauthn.ParseRegistration(raw)
	if err != nil {
		return webauthn.Credential{}, err
	}
	return r.Verify(p)
}

func assert(raw []byte, p *webauthn.Policy, c webauthn.Credential) (webauthn.Credential, error) {
	a, err := webauthn.ParseAssertion(raw)
	if err == nil {
		err = a.Check(p)
	}
	if err != nil {
		return c, err
	}
	return a.Verify(c)
}

func check(t *testing.T, c webauthntest.Case, err error) {
	t.Helper()
	switch {
	case c.Accepted && err != nil:
		t.Errorf("%s: %v, want it accepted", c.Name, err)
	case c.Failure != "" && err != c.Failure:
		t.Errorf("%s: %v, want the failure %q", c.Name, err, string(c.Failure))
	case !c.Accepted && c.Failure == "" && !errors.Is(err, webauthn.ErrUnreadable):
		t.Errorf("%s: %v, want it unreadable", c.Name, err)
	}
}

func TestHostile(t *testing.T) {
	for _, c := range webauthntest.Hostile(webauthntest.Creation, rpID, origin) {
		a := &webauthntest.Authenticator{Algorithm: c.Algorithm}
		_, err := register(create(t, a, c.Change), policy(c.RequireUV))
		check(t, c, err)
	}
	for _, c := range webauthntest.Hostile(webauthntest.Request, rpID, origin) {
		a := &webauthntest.Authenticator{Algorithm: c.Algorithm}
		kept, err := register(create(t, a), policy(false))
		must.Succeed(t, err)
		_, err = assert(get(t, a, c.Change), policy(c.RequireUV), kept)
		check(t, c, err)
	}
}

func TestVerify_counters(t *testing.T) {
	for _, c := range []struct {
		flags        byte
		stored, sent uint32
		want         error
	}{
		{0, 0, 0, nil},
		{0, 5, 6, nil},
		{0, 0, 1<<32 - 1, nil},
		{0, 5, 5, webauthn.FailedSignCount},
		{0, 5, 4, webauthn.FailedSignCount},
		{0, 5, 0, webauthn.FailedSignCount},
		{webauthntest.BE, 5, 0, nil},
		{webauthntest.BE, 5, 3, nil},
		{webauthntest.BE | webauthntest.BS, 0, 9, nil},
	} {
		a := &webauthntest.Authenticator{Flags: c.flags}
		kept, err := register(create(t, a), policy(false))
		must.Succeed(t, err)
		kept.SignCount, a.Keys()[0].Count = c.stored, c.sent
		got, err := assert(get(t, a), policy(false), kept)
		if err != c.want {
			t.Errorf("%+v: %v", c, err)
		}
		if want := map[bool]uint32{false: c.sent, true: c.stored}[c.flags != 0]; err == nil && got.SignCount != want {
			t.Errorf("%+v: counter %d is stored", c, got.SignCount)
		}
	}
}

// A synced passkey that is backed up later says so.
func TestVerify_backupState(t *testing.T) {
	a := &webauthntest.Authenticator{Flags: webauthntest.BE}
	kept, err := register(create(t, a), policy(false))
	if err != nil || !kept.BackupEligible || kept.BackedUp {
		t.Fatalf("registered %+v, %v", kept, err)
	}
	a.Flags |= webauthntest.BS | webauthntest.UV
	if kept, err = assert(get(t, a), policy(false), kept); err != nil || !kept.BackedUp || !kept.UserVerified {
		t.Errorf("asserted %+v, %v", kept, err)
	}
}

func TestVerify_otherCredential(t *testing.T) {
	a, b := &webauthntest.Authenticator{}, &webauthntest.Authenticator{}
	kept, err := register(create(t, a), policy(false))
	must.Succeed(t, err)
	create(t, b)
	if _, err := assert(get(t, b), policy(false), kept); err != webauthn.FailedCredentialID {
		t.Errorf("another credential: %v", err)
	}
	kept.PublicKey = kept.PublicKey[:20]
	if _, err := assert(get(t, a), policy(false), kept); err != webauthn.FailedKey {
		t.Errorf("a broken key: %v", err)
	}
}

// Each bit of what is signed, and of the signature, counts.
func TestVerify_bitFlips(t *testing.T) {
	for _, alg := range []int{webauthn.ES256, webauthn.EdDSA, webauthn.RS256} {
		a := &webauthntest.Authenticator{Algorithm: alg}
		kept, err := register(create(t, a), policy(false))
		must.Succeed(t, err)
		var honest webauthntest.Message
		get(t, a, webauthntest.After(func(m *webauthntest.Message) { honest = *m }))
		for _, part := range []func(m *webauthntest.Message) *[]byte{
			func(m *webauthntest.Message) *[]byte { return &m.AuthData },
			func(m *webauthntest.Message) *[]byte { return &m.ClientData },
			func(m *webauthntest.Message) *[]byte { return &m.Signature },
		} {
			for i := range len(*part(&honest)) * 8 {
				m := honest
				flipped := bytes.Clone(*part(&m))
				flipped[i/8] ^= 1 << (i % 8)
				*part(&m) = flipped
				raw := message(kept.ID, map[string][]byte{"clientDataJSON": m.ClientData,
					"authenticatorData": m.AuthData, "signature": m.Signature})
				if _, err := assert(raw, policy(false), kept); err == nil {
					t.Errorf("algorithm %d: accepted with bit %d flipped", alg, i)
				}
			}
		}
	}
}

func TestParse_transports(t *testing.T) {
	a := &webauthntest.Authenticator{}
	raw := create(t, a, webauthntest.After(func(m *webauthntest.Message) {
		m.Transports = strings.Split("usb,,NFC,smart-card,a b,"+strings.Repeat("x", 33)+",1,2,3,4,5,6,7", ",")
	}))
	c, err := register(raw, policy(false))
	if got := strings.Join(c.Transports, " "); err != nil || got != "usb smart-card 1 2 3 4 5 6" {
		t.Errorf("kept %q, %v", got, err)
	}
	raw = bytes.Replace(raw, []byte(`"transports":[`), []byte(`"transports":"x","y":[`), 1)
	if c, err := register(raw, policy(false)); err != nil || c.Transports != nil {
		t.Errorf("a text for a list: %q, %v", c.Transports, err)
	}
}

func TestOptions(t *testing.T) {
	o := creation()
	o.User.Name, o.User.DisplayName, o.Timeout = "ann@example.org", "Ann", 300000
	o.ExcludeCredentials = []webauthn.Descriptor{webauthn.Describe(webauthn.Credential{ID: []byte{1},
		Transports: []string{"usb"}}), webauthn.Describe(webauthn.Credential{ID: []byte{2}})}
	text, err := json.Marshal(o)
	want := `{"rp":{"id":"app.test","name":"App"},"user":{"id":"YW5u","name":"ann@example.org","displayName":"Ann"},` +
		`"challenge":` + strconv.Quote(webauthn.Encode(challenge)) + `,` +
		`"pubKeyCredParams":[{"type":"public-key","alg":-7},{"type":"public-key","alg":-8},` +
		`{"type":"public-key","alg":-257}],` +
		`"timeout":300000,"excludeCredentials":[{"type":"public-key","id":"AQ","transports":["usb"]},` +
		`{"type":"public-key","id":"Ag"}],` +
		`"authenticatorSelection":{"residentKey":"required","requireResidentKey":true,"userVerification":"preferred"},` +
		`"attestation":"none"}`
	if err != nil || string(text) != want {
		t.Errorf("options\n%s\nwant\n%s\n%v", text, want, err)
	}
}

func macs(keys ...string) webauthn.MACs { return macsOf(keys) }

func TestChallenges(t *testing.T) {
	begun := webauthn.Ceremony{Kind: "registration", RPID: rpID, Binding: []string{"user", "session"}}
	expires := time.Unix(1800000000, 0)
	id := begun.NewID(macs("old"), expires)
	if id[6]>>4 != 8 || id[8]>>6 != 2 {
		t.Errorf("%x is no UUID of version 8", id)
	}
	if other := begun.NewID(macs("old"), expires); other == id {
		t.Error("two ids are equal")
	}
	if at, ok := begun.Expiry(macs("old"), id); !ok || !at.Equal(expires) {
		t.Errorf("expires %v, %v", at, ok)
	}
	sent := begun.Challenges(macs("old"), id)[0]
	both := macs("new", "old")
	if _, ok := begun.Expiry(both, id); !ok || !bytes.Equal(begun.Challenges(both, id)[1], sent) {
		t.Error("a previous root key is not tried")
	}
	if _, ok := begun.Expiry(macs("new"), id); ok {
		t.Error("accepted without its root key")
	}
	for i := range len(id) * 8 {
		flipped := id
		flipped[i/8] ^= 1 << (i % 8)
		if _, ok := begun.Expiry(macs("old"), flipped); ok {
			t.Errorf("accepted with bit %d flipped", i)
		}
	}
	for name, other := range map[string]webauthn.Ceremony{
		"kind":    {Kind: "authentication", RPID: rpID, Binding: begun.Binding},
		"RP id":   {Kind: begun.Kind, RPID: "other.test", Binding: begun.Binding},
		"user":    {Kind: begun.Kind, RPID: rpID, Binding: []string{"another", "session"}},
		"session": {Kind: begun.Kind, RPID: rpID, Binding: []string{"user", "another"}},
		"split":   {Kind: begun.Kind, RPID: rpID, Binding: []string{"users", "ession"}},
	} {
		if _, ok := other.Expiry(macs("old"), id); ok {
			t.Errorf("accepted with another %s", name)
		}
		if bytes.Equal(other.Challenges(macs("old"), id)[0], sent) {
			t.Errorf("the same challenge with another %s", name)
		}
	}
}
