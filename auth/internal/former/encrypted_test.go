package former

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func sha(b []byte) [32]byte { return sha256.Sum256(b) }

const encryptedTOTP = `{"key_id":"k1","alg":"aes-gcm-hkdf","data":"Sd0RH30LsinTvfq0YAop0Iuh2Zp5ci7kGomjiIe5qZY=","nonce":"AAAAAAAAAAAAAAAA"}`

func TestEncrypted(t *testing.T) {
	keys, err := ParseKeys("k0:" + strings.Repeat("A", 43) + ", k1:" + testKeyText)
	if err != nil {
		t.Fatal(err)
	}
	e, ok := ParseEncrypted(encryptedTOTP)
	if !ok || e.KeyID != "k1" {
		t.Fatalf("%+v, %v", e, ok)
	}
	if plain, err := e.Open(keys, testSession); err != nil || plain != "JBSWY3DPEHPK3PXP" {
		t.Errorf("%q, %v", plain, err)
	}
	if _, err := e.Open(keys, uuid.New()); !errors.Is(err, ErrOtherKey) {
		t.Errorf("of another row: %v", err)
	}
	if _, err := e.Open(Keys{"k1": keys["k0"]}, testSession); !errors.Is(err, ErrOtherKey) {
		t.Errorf("with another key: %v", err)
	}
	if _, err := e.Open(Keys{"k0": testKey}, testSession); !errors.Is(err, ErrNoKey) {
		t.Errorf("without its key: %v", err)
	}
	for _, text := range []string{
		"", "$2a$10$abc", "{", "{}", "{JBSWY3DP", strings.Replace(encryptedTOTP, "aes-gcm-hkdf", "aes", 1),
		" " + encryptedTOTP,
		strings.Replace(encryptedTOTP, `"k1"`, `""`, 1), strings.Replace(encryptedTOTP, `AAAA"}`, `"}`, 1),
		encryptedTOTP + "}",
		strings.Replace(encryptedTOTP, "Y=", "Y", 1),
		`{"key_id":"k1","alg":"aes-gcm-hkdf","data":"","nonce":"AAAAAAAAAAAAAAAA"}`,
	} {
		if e, ok := ParseEncrypted(text); ok {
			t.Errorf("%q is encrypted: %+v", text, e)
		}
	}
}

func TestParseKeys(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		keys, err := ParseKeys(text)
		if err != nil && err.Error() != want || err == nil && want != "" {
			t.Errorf("%q: %v, %v; want %q", text, keys, err, want)
		}
		if err != nil && strings.Contains(err.Error(), testKeyText[:20]) {
			t.Errorf("the error shows a key: %v", err)
		}
	}
	f("", "")
	f(" ", "")
	f("a:"+testKeyText+",b:"+testKeyText, "")
	f(testKeyText, "key 1: want ID:KEY")
	f("a:"+testKeyText+",", "key 2: want ID:KEY")
	f(":"+testKeyText, "key 1: want ID:KEY")
	f("a:"+testKeyText[1:], `key 1 ("a"): want 32 bytes in base64url without padding`)
	f("a:"+testKeyText+"=", `key 1 ("a"): want 32 bytes in base64url without padding`)
	f("a:"+testKeyText+",a:"+testKeyText, `key 2: there are two keys named "a"`)
	keys := Keys{"k": []byte("sesame")}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(format, keys); text != "1 keys" {
			t.Errorf("%s prints %s", format, text)
		}
	}
}

func TestTOTPKey(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		key, ok := TOTPKey(text)
		if ok != (want != "") || hex.EncodeToString(key) != want && ok {
			t.Errorf("%q: %x, %v; want %q", text, key, ok, want)
		}
	}
	f("JBSWY3DPEHPK3PXP", "48656c6c6f21deadbeef")
	f("jbswy3dpehpk3pxp", "48656c6c6f21deadbeef")
	f("JBSWY3DPEE", "48656c6c6f21")
	f("JBSWY3DPEE======", "48656c6c6f21")
	for _, text := range []string{"", "=", "1", "JBSWY3D!", "JBSW\nY3DP", "{}"} {
		f(text, "")
	}
}

func TestLinkHash(t *testing.T) {
	const link = "7f7f594ffecfb07211fbf02b0fe0357fc146dc4091c3c02acac3c767"
	hash, ok := LinkHash(link)
	if got := hex.EncodeToString(hash[:]); !ok ||
		got != "7071d183c61173237e44424ae4471bc8cf92f3dd152c4ad22afb71f08437dfd1" {
		t.Errorf("hash %s, %v", got, ok)
	}
	for _, text := range []string{"", link[1:], link + "0", strings.ToUpper(link), link[:55] + "g", PKCEPrefix + link,
		strings.Repeat("0", 64)} {
		if _, ok := LinkHash(text); ok {
			t.Errorf("%q is a link's token", text)
		}
	}
}

func FuzzParseEncrypted(f *testing.F) {
	keys := Keys{"k1": testKey}
	for _, text := range []string{encryptedTOTP, "{}", "{", "", "JBSWY3DPEHPK3PXP", "jbswy3dp===", testKeyText,
		strings.Replace(encryptedTOTP, "k1", "k2", 1)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if key, ok := TOTPKey(text); ok == (len(key) == 0) {
			t.Errorf("%q: key %x, %v", text, key, ok)
		}
		if key, ok := SessionKey(text); ok && (len(key) != 32 || encoding.EncodeToString(key) != text) {
			t.Errorf("%q: session key %x", text, key)
		}
		e, ok := ParseEncrypted(text)
		if !ok {
			return
		}
		plain, err := e.Open(keys, testSession)
		switch {
		case err == nil:
			sealed := columnCipher(testKey, testSession).Seal(nil, e.nonce, []byte(plain), nil)
			if !bytes.Equal(sealed, e.data) {
				t.Errorf("%q opens as %q, which is sealed otherwise", text, plain)
			}
		case !errors.Is(err, ErrNoKey) && !errors.Is(err, ErrOtherKey):
			t.Errorf("%q: %v", text, err)
		}
	})
}
