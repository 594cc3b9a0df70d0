// Package pki makes the keys and certificates of a cluster: one CA, the servers' pairs, the service-account key, and
// a kubeconfig with a client certificate for each component.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A component's user and group, as the API server's built-in roles know them.
var clients = []struct{ file, user, group string }{
	{"admin", "kubernetes-admin", "system:masters"},
	{"controller-manager", "system:kube-controller-manager", ""},
	{"scheduler", "system:kube-scheduler", ""},
	{"proxy", "system:kube-proxy", ""},
	{"coredns", "coredns", "system:masters"},
	{"netpol", "netpol", "system:masters"},
}

type node struct {
	name    string
	address net.IP
}

var loopback = net.IPv4(127, 0, 0, 1)

// Main writes everything into a folder. Arguments: DIR CLUSTER SERVICE_ADDRESS NODE=ADDRESS...; CLUSTER names the
// kubeconfigs' cluster and context. The API server answers at the address of its Service and of the first node, a
// kubelet at its node's: kubelet-NODE is the kubelet's pair as a server, and its kubeconfig.
func Main(args []string) error {
	if len(args) < 4 {
		return errors.New("usage: hyperkube pki DIR CLUSTER SERVICE_ADDRESS NODE=ADDRESS...")
	}
	dir, cluster := args[0], args[1]
	service, err := parseAddress(args[2])
	if err != nil {
		return err
	}
	var nodes []node
	for _, arg := range args[3:] {
		name, text, _ := strings.Cut(arg, "=")
		address, err := parseAddress(text)
		if err != nil {
			return err
		}
		nodes = append(nodes, node{name, address})
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	ca, err := newAuthority(dir)
	if err != nil {
		return err
	}
	_, saKey, err := newKey()
	if err != nil {
		return err
	}
	apiNames := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local"}
	apiAddresses := []net.IP{nodes[0].address, loopback, service}
	url := fmt.Sprintf("https://%s:6443", nodes[0].address)
	if err := errors.Join(
		ca.write("sa.key", saKey),
		ca.writePair("apiserver", pkix.Name{CommonName: "kube-apiserver"}, apiNames, apiAddresses),
		ca.writePair("apiserver-kubelet", subject("kube-apiserver-kubelet-client", "system:masters"), nil, nil),
	); err != nil {
		return err
	}
	for _, c := range clients {
		if err := ca.writeKubeconfig(c.file, cluster, url, subject(c.user, c.group)); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		file, names, addresses := "kubelet-"+n.name, []string{"localhost", n.name}, []net.IP{n.address, loopback}
		if err := errors.Join(
			ca.writePair(file, pkix.Name{CommonName: n.name}, names, addresses),
			ca.writeKubeconfig(file, cluster, url, subject("system:node:"+n.name, "system:nodes")),
		); err != nil {
			return err
		}
	}
	return nil
}

func parseAddress(text string) (net.IP, error) {
	address := net.ParseIP(text)
	if address == nil {
		return nil, fmt.Errorf("pki: %q is no IP address", text)
	}
	return address, nil
}

func subject(user, group string) pkix.Name {
	name := pkix.Name{CommonName: user}
	if group != "" {
		name.Organization = []string{group}
	}
	return name
}

type authority struct {
	dir    string
	cert   *x509.Certificate
	pem    []byte
	key    *ecdsa.PrivateKey
	serial int64
}

func newAuthority(dir string) (*authority, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	a := &authority{dir: dir, key: key}
	a.cert = a.template(pkix.Name{CommonName: "kubernetes"})
	a.cert.IsCA, a.cert.BasicConstraintsValid = true, true
	a.cert.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil { // as signed: leaves name its key id
		return nil, err
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a, errors.Join(a.write("ca.crt", a.pem), a.write("ca.key", keyPEM))
}

// template starts a certificate. It is valid for a year, from an hour ago so that a clock set back does no harm.
func (a *authority) template(name pkix.Name) *x509.Certificate {
	a.serial++
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(a.serial),
		Subject:      name,
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.AddDate(1, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func (a *authority) leaf(name pkix.Name, dnsNames []string, addresses []net.IP) (certPEM, keyPEM []byte, err error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	t := a.template(name)
	t.DNSNames, t.IPAddresses = dnsNames, addresses
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, &key.PublicKey, a.key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM, err
}

func (a *authority) writePair(file string, name pkix.Name, dnsNames []string, addresses []net.IP) error {
	cert, key, err := a.leaf(name, dnsNames, addresses)
	return errors.Join(err, a.write(file+".crt", cert), a.write(file+".key", key))
}

func (a *authority) writeKubeconfig(file, cluster, url string, name pkix.Name) error {
	cert, key, err := a.leaf(name, nil, nil)
	if err != nil {
		return err
	}
	b64 := base64.StdEncoding.EncodeToString
	return a.write(file+".kubeconfig", fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: %[1]s
  cluster: {server: %[2]q, certificate-authority-data: %[3]s}
users:
- name: %[4]s
  user: {client-certificate-data: %[5]s, client-key-data: %[6]s}
contexts:
- name: %[1]s
  context: {cluster: %[1]s, user: %[4]s}
current-context: %[1]s
`, cluster, url, b64(a.pem), file, b64(cert), b64(key)))
}

func (a *authority) write(name string, content []byte) error {
	return os.WriteFile(filepath.Join(a.dir, name), content, 0o600)
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	return key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), err
}
