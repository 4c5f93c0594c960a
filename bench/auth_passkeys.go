//go:build linux

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
)

// Sign-ins with passkeys are measured on a daemon of their own, because all others have passkeys turned off.
// optionsLine is the request for challenges, which passkeyLine answers. passwordLine is the sign-in to compare with, by
// a password that is hashed as in production.
var (
	optionsLine  = line{scenario: "options", target: "passkeys"}
	passkeyLine  = line{scenario: "passkey", target: "passkeys"}
	passwordLine = line{scenario: "password", target: "default"}
)

const passkeyRP, passkeyOrigin = "bench.example", "https://bench.example"

// passkeys has accounts that have a passkey each, all with the same key, and the challenges that are to be answered.
type passkeys struct {
	key      *ecdsa.PrivateKey
	accounts []account
	begun    []challenge
}

type challenge struct{ id, text string }

// startPasskeys starts the daemon for passkeys and gives each of its accounts a passkey.
func (s *authSuite) startPasskeys(ctx context.Context) error {
	if !s.wants("auth", passkeyLine) {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		return err
	}
	name := passkeyLine.target
	if err := s.startDaemon(ctx, s.testbed.authDaemon, name, 500, append(cheapHash("HS256"), "AUTH_PASSKEY_ENABLED=true",
		"AUTH_WEBAUTHN_RP_ID="+passkeyRP, "AUTH_WEBAUTHN_RP_DISPLAY_NAME=bench",
		"AUTH_WEBAUTHN_RP_ORIGINS="+passkeyOrigin)); err != nil {
		return err
	}
	s.passkeys = passkeys{key: key, accounts: s.crowd[name]}
	cose := fmt.Sprintf("a5010203262001215820%x225820%x", point[1:33], point[33:])
	return execSQL(ctx, s.db.server.PostgresURL(name), fmt.Sprintf(`
		insert into webauthn_credentials (id, user_id, credential_id, public_key, backup_eligible, backed_up, created_at)
		select gen_random_uuid(), id, convert_to(email, 'UTF8'), '\x%s', true, true, now() from users`, cose),
		"vacuum analyze")
}

// asking returns traffic that begins sign-ins and keeps their challenges in p.begun.
func (p *passkeys) asking() httpTraffic {
	p.begun = p.begun[:0]
	request := appendRequest(nil, "POST", "/passkeys/authentication/options", "", []byte(`{"gotrue_meta_security":{}}`))
	return httpTraffic{
		next: func(b []byte, _ int) ([]byte, bool) { return append(b, request...), true },
		judge: func(_, status int, answer []byte) bool {
			c := challenge{field(answer, "challenge_id"), field(answer, "challenge")}
			p.begun = append(p.begun, c)
			return status == 200 && c.id != "" && c.text != ""
		},
	}
}

// signingIn returns traffic that answers each challenge in p.begun once, for one account after the other.
func (p *passkeys) signingIn() httpTraffic {
	begun := p.begun
	return byAccounts(authConns, p.accounts, false, func(b []byte, _ int, a *account) []byte {
		if len(begun) == 0 {
			// No challenge is left: the request will be refused and counted as failed.
			return appendRequest(b, "POST", "/passkeys/authentication/verify", "", nil)
		}
		c := begun[0]
		begun = begun[1:]
		return appendRequest(b, "POST", "/passkeys/authentication/verify", "", p.answer(c, a))
	}, answered(200))
}

// answer returns the body that answers a challenge, signed as by a synced passkey that has verified its user.
func (p *passkeys) answer(c challenge, a *account) []byte {
	text := base64.RawURLEncoding.EncodeToString
	client := fmt.Appendf(nil, `{"type":"webauthn.get","challenge":%q,"origin":%q,"crossOrigin":false}`, c.text,
		passkeyOrigin)
	rp, clientHash := sha256.Sum256([]byte(passkeyRP)), sha256.Sum256(client)
	data := append(rp[:], 0x1d, 0, 0, 0, 0) // the flags UP, UV, BE and BS, and a signature counter of 0
	digest := sha256.Sum256(append(data[:len(data):len(data)], clientHash[:]...))
	signature, err := ecdsa.SignASN1(rand.Reader, p.key, digest[:])
	claims, failed := base64.RawURLEncoding.DecodeString(strings.Split(a.access, ".")[1])
	if err != nil || failed != nil {
		panic(fmt.Sprint("bench: sign an assertion: ", err, failed))
	}
	id := text([]byte(a.email))
	return fmt.Appendf(nil, `{"challenge_id":%q,"credential":{"id":%q,"rawId":%q,"type":"public-key","response":{`+
		`"clientDataJSON":%q,"authenticatorData":%q,"signature":%q,"userHandle":%q}}}`,
		c.id, id, id, text(client), text(data), text(signature), text([]byte(field(claims, "sub"))))
}

// comparePasskeys compares the CPU time of a sign-in by passkey, including its request for a challenge, with that of a
// sign-in by password.
func (s *authSuite) comparePasskeys() {
	whole := s.of(passkeyLine, cpu)
	for i, options := range s.of(optionsLine, cpu) {
		if i < len(whole) {
			whole[i] += options
		}
	}
	bare := s.of(bareLine, cpu)
	password := minus(s.of(hs("password"), cpu), minus(s.of(hashLine, cpu), bare))
	s.report.atMost(250, " µs", "passkey and options: server beyond password without its hash", minus(whole, password))
	signed := minus(whole, minus(bare, s.of(rs256Line, cpu)))
	s.report.atMost(.066, " ×", "passkey and options, with an RS256 token ÷ password, default",
		ratios(signed, s.of(passwordLine, cpu)), "at least 15 times as cheap")
}
