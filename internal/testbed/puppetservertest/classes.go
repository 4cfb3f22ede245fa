package puppetservertest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// jar is Debian's program. It and most of its libraries are Clojure sources, which each start would compile: half of a
// start's time.
const jar = "/usr/share/puppetserver/puppetserver.jar"

// compile compiles the services of a configuration and all that they need.
const compile = `(binding [*compile-files* true *compile-path* (System/getProperty "to")]
  (require 'puppetlabs.trapperkeeper.main 'puppetlabs.trapperkeeper.core)
  (doseq [file ["bootstrap.cfg" "ca.cfg"]
          line (clojure.string/split-lines (slurp (str "%s/services.d/" file)))
          :let [line (clojure.string/replace (clojure.string/trim line) #"^#(?=puppetlabs)" "")]
          :when (and (seq line) (not (.startsWith line "#")))]
    (require (symbol (first (clojure.string/split line #"/"))))))
(shutdown-agents)
`

// classes returns a folder with the compiled puppetserver. All tests of a machine share it: it is made once, in 30 s.
func classes() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	key, err := versions()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "pulley", "puppetserver-"+key)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return dir, err
	}
	to, err := os.MkdirTemp(filepath.Dir(dir), "compile-")
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	c := exec.Command("java", "-Xmx600m", "-Dto="+to, "-cp", jar+":"+to, "clojure.main", "-e", fmt.Sprintf(compile, packaged))
	c.Stdout, c.Stderr = &out, &out
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig watches the thread that forked
	defer runtime.UnlockOSThread()
	if err := c.Run(); err != nil {
		_ = os.RemoveAll(to)
		return "", fmt.Errorf("cannot compile puppetserver: %w\n%s", err, out.Bytes())
	}
	return dir, os.Rename(to, dir)
}

// versions names the installed puppetserver, its libraries and its Java.
func versions() (string, error) {
	sum := sha256.New()
	libraries, err := filepath.Glob("/usr/share/java/*.jar")
	if err != nil {
		return "", err
	}
	for _, file := range append(libraries, jar) {
		info, err := os.Stat(file)
		if err != nil {
			continue // a link of a removed package
		}
		fmt.Fprintln(sum, file, info.Size(), info.ModTime().Unix())
	}
	java, err := exec.LookPath("java")
	if err != nil {
		return "", errors.New("there is no Java here: apt-get install puppetserver")
	}
	if java, err = filepath.EvalSymlinks(java); err != nil {
		return "", err
	}
	_, _ = io.WriteString(sum, java)
	return fmt.Sprintf("%.12x", sum.Sum(nil)), nil
}
