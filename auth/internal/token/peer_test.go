package token

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"gatehouse/shared/must"
)

// What we sign, another library reads; what it signs, we read.
func TestPeer(t *testing.T) {
	rs, es, ed, oct := testKeys(t)
	for _, k := range []*Key{rs, es, ed, oct} {
		set := setFor(t, k)
		text, err := set.Sign(nil, testClaims())
		must.Succeed(t, err)
		var public any
		switch p := k.private.(type) {
		case *rsa.PrivateKey:
			public = &p.PublicKey
		case *ecdsa.PrivateKey:
			public = &p.PublicKey
		case ed25519.PrivateKey:
			public = p.Public()
		case []byte:
			public = p
		}
		options := []jwt.ParserOption{jwt.WithValidMethods([]string{k.alg.String()}), jwt.WithStrictDecoding(),
			jwt.WithTimeFunc(func() time.Time { return testNow })}
		claims := jwt.MapClaims{}
		token, err := jwt.NewParser(options...).ParseWithClaims(string(text), claims,
			func(token *jwt.Token) (any, error) { return public, nil })
		if err != nil || token.Header["kid"] != k.id || token.Header["typ"] != "JWT" ||
			claims["sub"] != testClaims().Subject {
			t.Errorf("%s: the peer reads header %v, claims %v: %v", k, token.Header, claims, err)
		}

		raw, _ := testClaims().appendTo(nil)
		their := jwt.MapClaims{}
		must.Succeed(t, json.Unmarshal(raw, &their))
		token = jwt.NewWithClaims(jwt.GetSigningMethod(k.alg.String()), their)
		token.Header["kid"] = k.id
		signed, err := token.SignedString(k.private)
		must.Succeed(t, err)
		var c Claims
		if by, err := set.Verify(&c, signed, testNow); err != nil || by != k ||
			c.Email != "mia@example.org" || c.AMR[0].Method != "password" {
			t.Errorf("%s: the peer's token is read as %+v: %v", k, c, err)
		}
	}
}
