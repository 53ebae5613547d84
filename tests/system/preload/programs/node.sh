# needs: node
# Node.js: files by its thread pool, streams and child processes.
cat > n.js <<'X'
const fs = require('fs'), cp = require('child_process'), path = require('path'); process.chdir(process.argv[2]);
fs.writeFileSync('a', 'text\n'.repeat(1000)); fs.appendFileSync('a', 'end'); console.log(fs.statSync('a').size, fs.readFileSync('a', 'utf8').length, fs.readdirSync('.'));
fs.mkdirSync('d/e', {recursive: true}); fs.renameSync('a', 'd/a'); fs.copyFileSync('d/a', 'b'); fs.symlinkSync('b', 'l'); console.log(fs.readlinkSync('l'), fs.realpathSync('l').split('/').pop());
const fd = fs.openSync('p', 'w+'); fs.writeSync(fd, Buffer.from('0123456789'), 0, 10, 5); const b = Buffer.alloc(4); console.log(fs.readSync(fd, b, 0, 4, 7), b.toString()); fs.ftruncateSync(fd, 9); fs.fsyncSync(fd); fs.closeSync(fd);
console.log(cp.execSync('cat d/a | wc -c').toString(), cp.spawnSync('cat', ['p']).stdout.length); const out = fs.openSync('out', 'w'); cp.spawnSync('sh', ['-c', 'echo child; pwd | sed "s/.*[/]//" > /dev/null'], {stdio: ['ignore', out, out]}); fs.closeSync(out); console.log(fs.readFileSync('out', 'utf8'));
(async () => { const p = fs.promises; await Promise.all([...Array(20).keys()].map(i => p.writeFile('f' + i, 'x'.repeat(i)))); console.log((await p.readdir('.')).length); const w = fs.createWriteStream('s'); for (let i = 0; i < 1000; i++) w.write('line ' + i + '\n'); await new Promise(r => w.end(r)); let n = 0; for await (const c of fs.createReadStream('s')) n += c.length; console.log(n); await p.rm('d', {recursive: true}); await p.cp('s', 't'); console.log(fs.existsSync('d'), fs.statSync('t').size); try { fs.openSync('nope'); } catch (e) { console.log(e.code); } })();
X
node n.js "$D"
